"""`addition`: trains a tiny transformer on worked one-digit sums (SFT), in a few seconds."""

from __future__ import annotations

from typing import Final

import numpy as np

from hookline.plugin_manager.manager import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer
from hookline.training.config import OptimizerConfig, SupervisedConfig, TrainerConfig
from hookline.training.tasks.task import task
from hookline.training.text_examples import demonstrations
from hookline.training.trainer import Trainer

__all__ = ["addition"]


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
