"""Errors of rollouts. Messages name the lesson, and the environment or episode if there is one."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = ["CurriculumError", "LessonError", "RolloutError", "UnknownEnvironmentError", "UnsupportedSpaceError"]


class RolloutError(HooklineError):
    """A rollout could not be made."""


class LessonError(RolloutError):
    """An environment or a checker failed, or returned an invalid value."""


class CurriculumError(RolloutError, ValueError):
    """The lessons of a curriculum are invalid."""


class UnknownEnvironmentError(RolloutError, LookupError):
    """There is no environment of this name."""


class UnsupportedSpaceError(RolloutError, TypeError):
    """An observation or action space is not supported."""
