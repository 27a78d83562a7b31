"""Tasks of a few seconds, for the tests of resumed runs: GRPO on sums, after a warm start and with a Hugging Face model
under each engine, SFT of that model, and GRPO on conversations. Among them are all weights and adapters, fp32 and bf16.

python tests/resumed_tasks.py model                         # makes the model
hookline train tests/resumed_tasks.py:jax_lora_bf16         # trains it
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from hookline import PluginManager
from hookline.policies import LoraConfig, TransformerPolicy
from hookline.rewards import IntegratedRewardConfig
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.text import CharacterTokenizer, Limits, TextProblem, arithmetic_lessons
from hookline.rollout.text.environment import Conversation
from hookline.testing.tiny_models import tiny_model
from hookline.training import (
    LearnerConfig,
    OptimizerConfig,
    RolloutConfig,
    SupervisedConfig,
    Task,
    Trainer,
    TrainerConfig,
    task,
)
from hookline.training.rollout_loop import worker_options
from hookline.training.tasks.task import Build
from hookline.training.text_examples import demonstrations
from hookline.training.warm_start import WarmStart

WARM_EPOCHS = 4


@task(
    threads=1,
    losses={"grpo": {}},
    optimizer=OptimizerConfig("adam", learning_rate=5e-4),
    rollout=RolloutConfig(
        num_environments=8, samples_per_prompt=4, rollouts_per_epoch=2, minibatches=2, update_epochs=1
    ),
)
def warm_started(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """Sampled in JAX, rewarded in MLX and trained in torch, as `arithmetic` is. It never solves all sums, so that its
    warm start is over when it has lost patience."""
    lessons = arithmetic_lessons("addition-1-2", "addition-2", unlock_at=0.0, max_new_tokens=4)
    tokenizer = CharacterTokenizer("0123456789+=")
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None),
            policy=TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=10),
            tokenizer=tokenizer,
            seed=config.seed,
            **worker_options(config.rollout),
        ),
        plugins,
    )
    rng = np.random.default_rng(config.seed)
    examples = demonstrations([lesson.environment.draw(rng) for lesson in lessons for _ in range(64)], tokenizer)
    warm_start = WarmStart(
        examples, until={"addition-2": 1.0}, n_examples=8, steps_per_epoch=4, patience=WARM_EPOCHS, batch_size=16
    )
    rewards = IntegratedRewardConfig(min_reward_threshold=0.0)
    return Trainer(config, plugins=plugins, worker=worker, rewards=rewards, warm_start=warm_start)


class Higher:
    """A game of several turns: say a digit that is higher than the last, until the target. Rewards each step."""

    limits = Limits(max_turns=3, max_new_tokens=2)

    def __init__(self, targets: tuple[int, ...]) -> None:
        self.targets = targets

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        return TextProblem(answer=str(rng.choice(self.targets)))

    def converse(self, problem: TextProblem) -> Conversation:
        target, last, reward = int(problem.answer), 0, 0.0
        response = yield f"{target}?"
        for turn in range(self.limits.max_turns):
            digit = int(response) if response.isdigit() else -1
            if not last < digit <= target:
                break
            last, reward = digit, reward + 1.0
            if turn + 1 < self.limits.max_turns:
                response = yield "+"
        return reward


@task(
    threads=1,
    losses={"grpo": {}},
    optimizer=OptimizerConfig("adam", learning_rate=5e-3),
    rollout=RolloutConfig(
        num_environments=8, samples_per_prompt=4, rollouts_per_epoch=2, minibatches=2, update_epochs=1
    ),
)
def turns(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """Conversations of up to three turns, in groups. The second lesson unlocks by the rewards of the first."""
    tokenizer = CharacterTokenizer("0123456789+?")
    lessons = [
        Lesson("low", Higher((5, 6, 7)), plateau_window=2, plateau_tolerance=1.0),
        Lesson("high", Higher((8, 9)), dependencies={"low": 0.05}),
    ]
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None),
            policy=TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=16),
            tokenizer=tokenizer,
            seed=config.seed,
            **worker_options(config.rollout),
        ),
        plugins,
    )
    return Trainer(config, plugins=plugins, worker=worker)


def grpo(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    lessons = arithmetic_lessons("addition-1", max_new_tokens=3)
    return Trainer(config, CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None), plugins=plugins)


def sft(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    examples = [{"tokens": [4 + (i * k) % 200 for k in range(1, 6 + i % 7)]} for i in range(1, 25)]
    return Trainer(config, dataset=examples, plugins=plugins)


def huggingface(build: Build, precision: str, lora: LoraConfig | None = None, **fields: Any) -> Task:
    optimizer = OptimizerConfig("adam", learning_rate=1e-3, schedule="constant")
    learner = LearnerConfig(precision=precision)
    return Task(
        build, TrainerConfig(policy="model", lora=lora, threads=1, optimizer=optimizer, learner=learner, **fields)
    )


def rollouts(engine: str, precision: str) -> RolloutConfig:
    return RolloutConfig(
        num_environments=4,
        samples_per_prompt=4,
        minibatches=2,
        update_epochs=1,
        temperature=1.2,
        top_k=10,
        engine=engine,
        precision=precision,
    )


KL = {"grpo": {"kl": 0.1}}
ADAPTERS = LoraConfig(r=4, dropout=0.1)
BATCHES = SupervisedConfig(batch_size=4)

transformers_bf16 = huggingface(grpo, "bf16", losses=KL, rollout=rollouts("transformers", "bf16"))
jax_lora_bf16 = huggingface(grpo, "bf16", ADAPTERS, losses=KL, rollout=rollouts("jax", "bf16"))
sft_lora_bf16 = huggingface(sft, "bf16", ADAPTERS, supervised=BATCHES)


if __name__ == "__main__":
    tiny_model(
        Path(sys.argv[1]),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.1,
    )
