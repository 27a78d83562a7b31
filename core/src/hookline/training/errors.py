"""The errors of training. Every message says what is wrong, where, and what to do."""

from __future__ import annotations

from hookline.errors import HooklineError

__all__ = [
    "DatasetError",
    "ExperienceError",
    "NonFiniteLossError",
    "RankError",
    "ReferencePolicyError",
    "TrainerConfigError",
    "TrainingError",
    "UnknownLossError",
    "UnknownTaskError",
]


class TrainingError(HooklineError):
    """Training cannot start or continue."""


class TrainerConfigError(TrainingError, ValueError):
    """A trainer's config has values that are invalid or do not fit together."""


class DatasetError(TrainingError, ValueError):
    """A dataset cannot be trained on."""


class ExperienceError(TrainingError, ValueError):
    """Losses and rollouts disagree on the fields of the experience."""


class UnknownLossError(TrainingError, LookupError):
    """There is no loss of this name."""


class UnknownTaskError(TrainingError, LookupError):
    """There is no task of this name."""


class NonFiniteLossError(TrainingError, FloatingPointError):
    """A loss or the gradient norm is NaN or infinite."""


class RankError(TrainingError):
    """A rank has died, hangs, or started at another point of the run."""


class ReferencePolicyError(TrainingError, ValueError):
    """A run would resume with another reference policy than it began with."""
