"""A tool that the policy learns to call: a tiny transformer with a calculator.

    hookline train examples/calculator_tool.py:calculator --run-dir runs/calculator
    python examples/calculator_tool.py 7                    # seed 7, and print how often it is right and calls the tool

The problem is `47*82=`. The policy may answer at once, or call the calculator with `<47*82>`. Its result is a message
with the role `tool`, after which the policy responds again. A conversation is worth 1 if its last response is right.

The warm start shows both ways, each with the right answer. A network of this size cannot learn to multiply, so that
its own answers stay wrong. GRPO finds out that calling the calculator pays.
"""

import re
import sys
import zlib

import jax
import numpy as np

import hookline
from hookline import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.text import CharacterTokenizer, Conversation, Limits, TextProblem
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig, task
from hookline.training.rollout_loop import worker_options
from hookline.training.text_examples import conversation
from hookline.training.warm_start import WarmStart
from hookline_hookspecs import EvaluationRequest, Turn

TOKENIZER = CharacterTokenizer("0123456789*=<>")
CALL = re.compile(r"<(\d+)\*(\d+)>")


class Calculator:
    """Two-digit products, with a calculator to call."""

    limits = Limits(max_turns=3, max_new_tokens=8)

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        while True:
            a, b = rng.integers(10, 100, 2).tolist()
            prompt = f"{a}*{b}="
            if (zlib.crc32(prompt.encode()) % 10 == 0) == held_out:  # one problem in ten is never trained on
                return TextProblem(prompt, str(a * b))

    def converse(self, problem: TextProblem) -> Conversation:
        response = yield problem.prompt
        while call := CALL.fullmatch(response):
            response = yield [Turn("tool", str(int(call[1]) * int(call[2])))]
        return float(response == problem.answer)


def demonstration(problem: TextProblem, *, calls: bool) -> list[Turn]:
    """A conversation that ends with the right answer, with a call or without one."""
    steps = [("user", problem.prompt)]
    if calls:
        steps += [("assistant", f"<{problem.prompt.removesuffix('=')}>"), ("tool", problem.answer)]
    return [Turn(role, text) for role, text in [*steps, ("assistant", problem.answer)]]


@task(
    epochs=60,
    losses={"grpo": {}},
    optimizer=OptimizerConfig("adam", learning_rate=5e-4, schedule="constant", max_grad_norm=1.0),
    rollout=RolloutConfig(
        num_environments=32, samples_per_prompt=8, rollouts_per_epoch=1, minibatches=2, update_epochs=1
    ),
)
def calculator(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """A warm start on worked problems until a tenth is solved, then GRPO."""
    environment = Calculator()
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(
                [Lesson("products", environment)],
                micro_eval_frequency=None,
                eval_frequency=None,
                heeds_evaluations=False,
            ),
            policy=TransformerPolicy(TOKENIZER.size, width=64, layers=2, heads=4, context=40),
            tokenizer=TOKENIZER,
            seed=config.seed,
            worker_index=plugins.rank,
            **worker_options(config.rollout),
        ),
        plugins,
    )
    rng = np.random.default_rng(config.seed)
    problems = [environment.draw(rng) for _ in range(8192)]
    shown = [
        conversation(demonstration(problem, calls=number % 4 == 0), TOKENIZER)
        for number, problem in enumerate(problems)
    ]
    warm_start = WarmStart(
        shown, until={"products": 0.15}, n_examples=128, steps_per_epoch=32, batch_size=64, learning_rate=2e-3
    )
    return Trainer(config, plugins=plugins, worker=worker, warm_start=warm_start)


def scores(worker: RolloutWorker, n_examples: int = 512) -> dict[str, float]:
    """How many held-out problems are solved, and in how many the calculator is called; sampled as in training."""
    (episodes,) = worker.play(EvaluationRequest(n_examples=n_examples, greedy=False), jax.random.key(1)).values()
    called = sum(any(turn.role == "tool" for turn in episode.turns) for episode in episodes)
    return {"solved": sum(episode.reward or 0.0 for episode in episodes) / n_examples, "called": called / n_examples}


if __name__ == "__main__":
    trainer = hookline.train(calculator, seed=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(scores(trainer.worker))
