"""`train`: a run with all installed plugins, in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hookline.plugins.settings import Settings
from hookline.session.opening import plugins_for_a_run
from hookline.training.config import TrainerConfig
from hookline.training.trainer import Trainer

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig

__all__ = ["train"]


def train(
    config: TrainerConfig | None = None,
    curriculum: Curriculum | CurriculumConfig | None = None,
    policy: Any = None,
    *,
    dataset: Any | None = None,
    validation_dataset: Any | None = None,
    hooks: Iterable[Any] = (),
    settings: Settings | None = None,
) -> Trainer:
    """Train with the installed plugins, and return the trainer; `Trainer` says what the parts are.

    :param hooks: whatever `Trainer.add_hook` takes, besides the plugins.
    :param settings: which installed plugins are wanted, and how (default: those of this folder and environment).
    """
    with plugins_for_a_run(settings=settings) as plugins:
        trainer = Trainer(
            config, curriculum, policy, dataset=dataset, validation_dataset=validation_dataset, plugins=plugins
        )
        for hook in hooks:
            trainer.add_hook(hook)
        trainer.train()
    return trainer
