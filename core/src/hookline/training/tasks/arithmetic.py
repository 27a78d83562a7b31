"""Two tasks on sums: `addition` (SFT, a few seconds), and `arithmetic` (a warm start by SFT, then GRPO).

Rollouts of `arithmetic` are sampled in JAX, rewarded and verified in MLX, and trained on in torch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hookline.plugin_manager.manager import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rewards import IntegratedRewardConfig, RewardConfig
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer, arithmetic_lessons
from hookline.training.config import OptimizerConfig, RolloutConfig, SupervisedConfig, TrainerConfig
from hookline.training.rollout_loop import worker_options
from hookline.training.tasks.task import task
from hookline.training.text_examples import demonstrations
from hookline.training.trainer import Trainer
from hookline.training.warm_start import WarmStart

__all__ = ["addition", "arithmetic"]

TOKENIZER: Final = CharacterTokenizer("0123456789+=")
LESSONS: Final = {"addition-1-2": 5460, "addition-2": 10920}
"""The number of examples of each lesson in the warm start."""
PROMPT_TOKENS: Final = 6
"""Two two-digit numbers, a plus and an equals sign."""
NEW_TOKENS: Final = 4
"""Three digits and the end token."""


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


@task(
    epochs=150,
    threads=2,
    losses={"grpo": {"clip": 0.2}},
    optimizer=OptimizerConfig("adam", learning_rate=5e-4, max_grad_norm=1.0),
    rollout=RolloutConfig(
        num_environments=64, samples_per_prompt=4, rollouts_per_epoch=12, minibatches=6, update_epochs=1
    ),
)
def arithmetic(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """Supervised until the policy solves a share of each lesson, then GRPO over a curriculum of these lessons.

    Held-out problems do not influence the run. No lesson graduates by them, and the run ends after its epochs.
    """
    lessons = arithmetic_lessons(*LESSONS, unlock_at=0.1, max_new_tokens=NEW_TOKENS)
    for lesson in lessons:
        # Unlock all lessons within two epochs, since the policy forgets lessons that it does not play.
        lesson.plateau_window, lesson.plateau_tolerance = 2, 1.0
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(
                lessons,
                smoothing=0.5,
                micro_eval_frequency=None,
                eval_frequency=None,
                heeds_evaluations=False,
            ),
            policy=TransformerPolicy(TOKENIZER.size, width=128, layers=2, heads=4, context=PROMPT_TOKENS + NEW_TOKENS),
            tokenizer=TOKENIZER,
            seed=config.seed,
            worker_index=plugins.rank,
            **worker_options(config.rollout),
        ),
        plugins,
    )
    generator = np.random.default_rng(config.seed)
    problems = [lesson.environment.draw(generator) for lesson in lessons for _ in range(LESSONS[lesson.lesson_id])]
    return Trainer(
        config,
        plugins=plugins,
        worker=worker,
        rewards=IntegratedRewardConfig(
            RewardConfig(length_weight=0, keyword_weight=0, perplexity_weight=0, accuracy_weight=0),
            strict_filtering=True,
            min_reward_threshold=0.0,
            verification_threshold=0.5,
            batch_size=512,
        ),
        warm_start=WarmStart(
            demonstrations(problems, TOKENIZER), until=dict.fromkeys(LESSONS, 0.4), n_examples=512, batch_size=64
        ),
    )
