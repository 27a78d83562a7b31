"""`addition`: trains a tiny transformer on worked one-digit sums (SFT), in a few seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from hookline.plugin_manager.manager import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer, TextProblem
from hookline.training.config import OptimizerConfig, SupervisedConfig, TrainerConfig
from hookline.training.tasks.task import task
from hookline.training.trainer import Trainer

__all__ = ["addition", "demonstrations"]


def demonstrations(
    problems: Iterable[TextProblem], tokenizer: CharacterTokenizer
) -> list[dict[str, list[int] | list[bool]]]:
    """One example per problem. The loss mask covers the answer and the end token, not the prompt."""
    examples: list[dict[str, list[int] | list[bool]]] = []
    for problem in problems:
        before, after = tokenizer.encode(problem.prompt), [*tokenizer.encode(problem.answer), tokenizer.end]
        examples.append({"tokens": before + after, "loss_mask": [False] * len(before) + [True] * len(after)})
    return examples


TOKENIZER: Final = CharacterTokenizer("0123456789+=")


@task(
    epochs=4,
    optimizer=OptimizerConfig("adam", learning_rate=3e-3, max_grad_norm=1.0),
    supervised=SupervisedConfig(batch_size=32, validate_every=16),
)
def addition(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """Supervised learning of 256 sums, with 64 held out."""
    generator = np.random.default_rng(config.seed)
    problems = [ArithmeticProblems(digits=1)(generator) for _ in range(320)]
    examples = demonstrations(problems, TOKENIZER)
    policy = TransformerPolicy(vocabulary=TOKENIZER.size, width=32, layers=1, heads=2, context=8)
    return Trainer(config, policy=policy, dataset=examples[64:], validation_dataset=examples[:64], plugins=plugins)
