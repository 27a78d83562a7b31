"""The PyTorch trainer: a loop for rollouts, a loop for datasets, and events for everything else.

    trainer = Trainer(TrainerConfig(epochs=10), Curriculum(CurriculumConfig()), policy)
    trainer.add_hook(MyHook())
    trainer.train()

`Trainer()` without arguments is a small CartPole run. With `dataset=` it trains on examples instead.
"""

from hookline.importing import require

require("torch", "the trainer")
require("numpy", "the trainer", "torch")

from hookline.training.config import (  # noqa: E402
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
    RolloutConfig,
    SupervisedConfig,
    TrainerConfig,
)
from hookline.training.experience import Experience  # noqa: E402
from hookline.training.losses.loss import Loss  # noqa: E402
from hookline.training.policy_evaluator import evaluate_run  # noqa: E402
from hookline.training.tasks.task import Task, task  # noqa: E402
from hookline.training.trainer import Trainer  # noqa: E402
from hookline_hookspecs import TrainerHook, TrainerState  # noqa: E402

__all__ = [
    "Experience",
    "LearnerConfig",
    "LoraConfig",
    "Loss",
    "OptimizerConfig",
    "RolloutConfig",
    "SupervisedConfig",
    "Task",
    "Trainer",
    "TrainerConfig",
    "TrainerHook",
    "TrainerState",
    "evaluate_run",
    "task",
]
