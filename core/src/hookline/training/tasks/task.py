"""`Task`: a function that builds a trainer, with its default config."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hookline.plugin_manager.faults import exits_as_errors
from hookline.plugin_manager.manager import PluginManager
from hookline.training.config import TrainerConfig
from hookline.training.errors import TrainingError
from hookline.training.trainer import Trainer

__all__ = ["Build", "Task", "task"]

Build = Callable[[TrainerConfig, PluginManager], Trainer]
"""Builds the trainer of a task, with the plugins of the run."""


@dataclass(frozen=True)
class Task:
    """A named training run."""

    build: Build
    config: TrainerConfig = field(default_factory=TrainerConfig)
    """The default config."""

    def trainer(self, plugins: PluginManager, **changes: Any) -> Trainer:
        """The trainer for the default config with some fields changed, such as `epochs=5`."""
        return self.make(replace(copy.deepcopy(self.config), **changes), plugins)

    def make(self, config: TrainerConfig, plugins: PluginManager) -> Trainer:
        """The trainer for a config. Raises if the function returns anything else."""
        function = f"the task's function {getattr(self.build, '__qualname__', self.build)!r}"
        with exits_as_errors(function):
            trainer: Any = self.build(config, plugins)
        if not isinstance(trainer, Trainer):
            raise TrainingError(f"{function} returned {trainer!r}: it must return a Trainer")
        return trainer


def task(**config: Any) -> Callable[[Build], Task]:
    """A decorator that makes a function a task, with this default `TrainerConfig`."""
    return lambda build: Task(build, TrainerConfig(**config))
