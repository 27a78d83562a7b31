"""From a lesson to its runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.rollout.config import RolloutWorkerConfig
from hookline.rollout.curriculum import Lesson
from hookline.rollout.environments.jax_environment import JaxEnvironment
from hookline.rollout.environments.naming import find_environment
from hookline.rollout.errors import RolloutError
from hookline.rollout.runners.gymnasium_runner import GymnasiumRunner
from hookline.rollout.runners.jax_runner import JaxRunner
from hookline.rollout.runners.runner import Runner
from hookline.rollout.runners.text_runner import TextRunner
from hookline.rollout.text.task import TextTask

__all__ = ["build_runner"]


def build_runner(lesson: Lesson, config: RolloutWorkerConfig, offered: Mapping[str, Any]) -> Runner:
    """The runner for a lesson's environment.

    :param offered: environments by name, as plugins give them in `register_environments`.
    """
    environment = lesson.environment
    name = environment if isinstance(environment, str) else getattr(environment, "__name__", type(environment).__name__)
    if isinstance(environment, str):
        environment = find_environment(environment, offered)
    if isinstance(environment, TextTask):
        return TextRunner(lesson, environment, config.tokenizer, config.num_environments, config.sampling)
    if isinstance(environment, JaxEnvironment):
        return JaxRunner(lesson, environment, config.num_environments, config.steps_per_rollout)
    if callable(environment):
        return GymnasiumRunner(lesson, name, environment, config.num_environments, config.steps_per_rollout)
    raise RolloutError(
        f"lesson {lesson.lesson_id!r}: an environment is a name, a JaxEnvironment, a TextTask, "
        f"or a function that makes a Gymnasium environment, not {environment!r}"
    )
