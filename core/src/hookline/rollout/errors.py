"""What can go wrong in a rollout. Every message names the lesson, and the environment or episode where there is one."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["CurriculumError", "LessonError", "RolloutError", "UnknownEnvironmentError", "UnsupportedSpaceError"]


class RolloutError(HooklineError):
    """A rollout could not be made."""


class LessonError(RolloutError):
    """An environment or a checker failed, or gave what is no reward."""


class CurriculumError(RolloutError, ValueError):
    """Lessons do not make a curriculum."""


class UnknownEnvironmentError(RolloutError, LookupError):
    """Nothing goes by the name of an environment."""


class UnsupportedSpaceError(RolloutError, TypeError):
    """A policy cannot act or see in an environment's spaces."""
