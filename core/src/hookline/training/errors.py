"""What can go wrong in training. Every message says what was wrong, where, and what to do."""

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
    """Training cannot begin, or cannot go on."""


class TrainerConfigError(TrainingError, ValueError):
    """A trainer's config has values that make no sense, or that do not fit together."""


class DatasetError(TrainingError, ValueError):
    """A dataset cannot be trained on."""


class ExperienceError(TrainingError, ValueError):
    """Losses and rollouts do not agree on what an experience holds."""


class UnknownLossError(TrainingError, LookupError):
    """Nothing goes by the name of a loss."""


class UnknownTaskError(TrainingError, LookupError):
    """Nothing goes by the name of a task."""


class NonFiniteLossError(TrainingError, FloatingPointError):
    """A loss is no longer a number."""


class RankError(TrainingError):
    """Another rank has died or hangs."""


class ReferencePolicyError(TrainingError, ValueError):
    """A run would go on with another reference policy than it began with."""
