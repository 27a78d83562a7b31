"""Lessons, and the curriculum's config: plain data that travels to wherever a worker is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CurriculumConfig", "Lesson"]


@dataclass
class Lesson:
    """Something to be learnt: an environment, and when it counts as learnt."""

    lesson_id: str = "cartpole"
    environment: Any = "CartPole-v1"
    """A name (`CartPole-v1`, any Gymnasium id, `gymnax:NAME`), a function that makes a Gymnasium environment, a
    `JaxEnvironment`, or a `TextTask`."""
    dependencies: dict[str, float] = field(default_factory=dict)
    """The success that other lessons must have reached, and levelled off at, before this one is unlocked."""
    success_above: float = 0.0
    """An episode is a success when its reward is greater than this."""
    stop_threshold: float = 0.95
    """The success in evaluation at which the lesson graduates."""
    plateau_window: int = 20
    """How many rollouts tell whether success has levelled off."""
    plateau_tolerance: float = 0.02
    """How far success may differ between the halves of the window and still count as level."""
    max_episode_steps: int | None = None
    """Cut longer episodes short, besides any limit that the environment has of its own."""
    category: str | None = None
    """What the lesson is counted under in evaluations, besides its own name."""


def _cartpole() -> list[Lesson]:
    return [Lesson("cartpole", "CartPole-v1", success_above=474.0)]


@dataclass
class CurriculumConfig:
    """The lessons, how they are sampled, and how often they are evaluated."""

    lessons: list[Lesson] = field(default_factory=_cartpole)
    smoothing: float = 0.9
    """How much of the moving average of success each new rollout leaves as it was."""
    sampling_floor: float = 0.1
    """The least weight of a lesson, beside 1 for a lesson learnt by half."""
    micro_eval_frequency: int | None = 10
    """Rollouts between two glances at the current lesson; None for none."""
    micro_eval_n_examples: int = 8
    eval_frequency: int | None = 100
    """Rollouts between two evaluations of all lessons; None for none."""
    eval_n_examples: int = 64
    heeds_evaluations: bool = True
    """Let the scores of full evaluations by others, such as the evaluation plugin's, graduate lessons too."""
