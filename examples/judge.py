"""A judge as a reward: a language model, run by mlx-lm, is asked for a verdict in words.

    python examples/judge.py

Only the exact words `right` and `wrong` are verdicts: 1 and 0. Anything else that the model says is no verdict. It is
None, with which the reward does not apply, or an error. It is never 0: otherwise every response would be wrong to a
model that cannot judge.

The judge is a tiny model that is made here. At first it has random weights and says nothing of use. Then it learns the
verdicts on a few answers by heart. With a real model, `Judge("path/to/model")` is all there is to it.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from mlx_lm import batch_generate, load
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from hookline import PluginManager, hookimpl
from hookline.rewards import RewardConfig, RewardError, create_rollout_reward_processor
from hookline.testing.tiny_models import tiny_model, tiny_tokenizer
from hookline_hookspecs import Episode, EpisodeBatch

QUESTION = "Question: {prompt} Answer: {response} Is the answer right or wrong? Verdict:"
VERDICT = re.compile(r"\s*(right|wrong)\s*")
REWARDS = {"right": 1.0, "wrong": 0.0}

EPISODES = [Episode("7+5=", "12"), Episode("7+5=", "13"), Episode("80+19=", "98"), Episode("80+19=", "99")]
VERDICTS = ["right", "wrong", "wrong", "right"]


class Judge:
    """A plugin with one reward, `judge`.

    :param folder: of the model.
    :param strict: whether an answer that is no verdict is an error. By default, the reward does not apply then.
    """

    def __init__(self, folder: str, *, strict: bool = False) -> None:
        self.model, self.tokenizer = load(folder)
        self.strict = strict

    @hookimpl
    def score_episodes(self, batch: EpisodeBatch) -> dict[str, list[float | None]]:
        questions = [QUESTION.format(prompt=episode.prompt, response=episode.response) for episode in batch]
        prompts = [self.tokenizer.encode(question) for question in questions]
        answers = batch_generate(self.model, self.tokenizer, prompts, max_tokens=8).texts
        return {"judge": [self.read(index, answer) for index, answer in enumerate(answers)]}

    def read(self, index: int, answer: str) -> float | None:
        """The reward of a verdict, which must be the whole answer."""
        verdict = VERDICT.fullmatch(answer)
        if verdict is not None:
            return REWARDS[verdict[1]]
        if self.strict:
            raise ValueError(f"episode {index}: the judge says {answer!a}, which is no verdict")
        return None


def rewards_by(judge: Judge) -> list[float]:
    """The rewards of the episodes by a judge alone."""
    plugins = PluginManager()
    plugins.register(judge, "judge")
    config = RewardConfig(length_weight=0, keyword_weight=0, perplexity_weight=0, accuracy_weight=0)
    rewards: list[float] = create_rollout_reward_processor(config, plugins).process_episode_rewards(EPISODES).tolist()
    return rewards


def learn_by_heart(folder: Path) -> None:
    """Train the model on the verdicts, in a plain torch loop."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens, labels = torch.zeros((4, 64), dtype=torch.long), torch.full((4, 64), -100)
    for row, (episode, verdict) in enumerate(zip(EPISODES, VERDICTS, strict=True)):
        question = tokenizer.encode(QUESTION.format(prompt=episode.prompt, response=episode.response))
        answer = [*tokenizer.encode(f" {verdict}"), tokenizer.eos_token_id]
        end = len(question) + len(answer)
        tokens[row, :end] = torch.tensor(question + answer)
        labels[row, len(question) : end] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(tokens, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def main() -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # for a model as small as this, more cost time
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tiny_tokenizer(folder, [QUESTION, *REWARDS], single_digits=True)
        tiny_model(folder, "qwen3", seed=1)
        print("a judge that knows nothing: ", rewards_by(Judge(made)))
        try:
            rewards_by(Judge(made, strict=True))
        except RewardError as error:
            print("the same, strict:           ", error)
        learn_by_heart(folder)
        print("a judge that learned:       ", rewards_by(Judge(made, strict=True)))


if __name__ == "__main__":
    main()
