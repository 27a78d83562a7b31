"""`Curriculum`: tracks the success of lessons, and unlocks and graduates them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

from hookline.errors import did_you_mean
from hookline.rollout.errors import CurriculumError

__all__ = ["Curriculum", "CurriculumConfig", "Lesson", "Standing"]


@dataclass
class Lesson:
    """An environment to learn, and when it counts as learned."""

    lesson_id: str = "cartpole"
    environment: Any = "CartPole-v1"
    """A name (`CartPole-v1`, or one of a plugin such as `gymnasium:Acrobot-v1`), a function that returns a Gymnasium
    environment, a `JaxEnvironment`, or a `TextEnvironment` such as `TextTask`."""
    dependencies: dict[str, float] = field(default_factory=dict)
    """The success rate at which each of these other lessons must level off before this one is unlocked."""
    success_above: float = 0.0
    """An episode is a success when its reward is greater than this."""
    stop_threshold: float = 0.95
    """The success rate in evaluation at which the lesson graduates."""
    plateau_window: int = 20
    """The number of rollouts that decide whether success has levelled off."""
    plateau_tolerance: float = 0.02
    """The largest difference in success between the halves of the window that counts as level."""
    max_episode_steps: int | None = None
    """Truncate longer episodes, in addition to any limit of the environment."""
    category: str | None = None
    """The group whose evaluation scores include this lesson."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of an environment that is named with a colon."""
    limits: dict[str, Any] = field(default_factory=dict)
    """Fields of a text environment's `Limits` that this lesson changes, such as `{"max_turns": 4}`."""


def _cartpole() -> list[Lesson]:
    return [Lesson("cartpole", "CartPole-v1", success_above=474.0)]


@dataclass
class CurriculumConfig:
    """The lessons, how they are sampled, and how often they are evaluated."""

    lessons: list[Lesson] = field(default_factory=_cartpole)
    smoothing: float = 0.9
    """The decay of the moving average of success, per rollout."""
    sampling_floor: float = 0.1
    """The smallest sampling weight of a lesson. A lesson with success 0.5 has weight 1."""
    micro_eval_frequency: int | None = 10
    """Rollouts between two micro evaluations of the current lesson. None for none."""
    micro_eval_n_examples: int = 8
    eval_frequency: int | None = 100
    """Rollouts between two evaluations of all lessons. None for none."""
    eval_n_examples: int = 64
    heeds_evaluations: bool = True
    """Let full evaluations by plugins, such as the evaluation plugin, graduate lessons too."""


Change = Literal["unlocked", "graduated"]


@dataclass
class Standing:
    """The progress of a lesson."""

    unlocked: bool = False
    graduated: bool = False
    success: float | None = None
    """The moving average of the success rate in training. None before the first episode."""
    history: list[float] = field(default_factory=list)
    """The latest values of `success`, up to the lesson's `plateau_window`."""
    evaluated_success: float | None = None
    """The success rate in the latest evaluation of all lessons. None before the first."""


class Curriculum:
    """Keeps the standing of each lesson from recorded rewards. It uses no rng."""

    def __init__(self, config: CurriculumConfig) -> None:
        self.config = config
        self.lessons: dict[str, Lesson] = _by_id(config.lessons)
        _check_dependencies(self.lessons)
        self.standings: dict[str, Standing] = {
            name: Standing(unlocked=not lesson.dependencies) for name, lesson in self.lessons.items()
        }

    @property
    def is_complete(self) -> bool:
        """Whether all lessons have graduated."""
        return all(standing.graduated for standing in self.standings.values())

    def success_of(self, lesson_id: str) -> float:
        """The moving average of the success rate in training, 0 before the first episode."""
        return self._standing(lesson_id).success or 0.0

    def sampling_weights(self) -> dict[str, float]:
        """The sampling probability of each unlocked lesson that has not graduated. It peaks at a success of 0.5."""
        weights = {}
        for name, standing in self.standings.items():
            if standing.unlocked and not standing.graduated:
                success = standing.success or 0.0
                weights[name] = max(4 * success * (1 - success), self.config.sampling_floor)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def sample(self, uniform: float) -> str:
        """Sample a lesson.

        :param uniform: a random number from 0..1.
        """
        weights = self.sampling_weights()
        if not weights:
            raise CurriculumError("all lessons have graduated: the run is complete")
        for name, weight in weights.items():
            uniform -= weight
            if uniform < 0:
                return name
        return next(reversed(weights))  # rounding errors may leave a remainder

    def record_training(self, lesson_id: str, rewards: Iterable[float | None]) -> None:
        """Record the rewards of a rollout's episodes. None and NaN, where no reward applies, are ignored."""
        standing, lesson = self._standing(lesson_id), self.lessons[lesson_id]
        share = _share_of_successes(lesson, rewards)
        if share is None:
            return
        keep = self.config.smoothing
        standing.success = share if standing.success is None else keep * standing.success + (1 - keep) * share
        standing.history = [*standing.history, standing.success][-lesson.plateau_window :]

    def record_evaluation(self, lesson_id: str, rewards: Iterable[float | None]) -> None:
        """Record the rewards of an evaluation. None is ignored."""
        share = _share_of_successes(self.lessons[self._known(lesson_id)], rewards)
        if share is not None:
            self.record_success_rate(lesson_id, share)

    def record_success_rate(self, lesson_id: str, rate: float) -> None:
        """Record the success rate of an evaluation."""
        self._standing(lesson_id).evaluated_success = rate

    def has_levelled_off(self, lesson_id: str) -> bool:
        """Whether success in training has stopped changing over a full window."""
        standing, lesson = self._standing(lesson_id), self.lessons[lesson_id]
        if len(standing.history) < lesson.plateau_window:
            return False
        half = lesson.plateau_window // 2
        earlier, later = standing.history[:half], standing.history[-half:]
        return abs(sum(later) - sum(earlier)) / half <= lesson.plateau_tolerance

    def update(self) -> dict[str, Change]:
        """Unlock and graduate lessons. Returns the lessons that changed."""
        changes: dict[str, Change] = {}
        for name, lesson in self.lessons.items():
            standing = self.standings[name]
            if not standing.unlocked and all(self._is_met(other, at) for other, at in lesson.dependencies.items()):
                standing.unlocked = True
                changes[name] = "unlocked"
            elif standing.unlocked and not standing.graduated and self._is_learnt(name):
                standing.graduated = True
                changes[name] = "graduated"
        return changes

    def _is_met(self, dependency: str, threshold: float) -> bool:
        standing = self.standings[dependency]
        # A graduated lesson is no longer played, so its success no longer changes.
        return standing.graduated or (self.success_of(dependency) >= threshold and self.has_levelled_off(dependency))

    def _is_learnt(self, lesson_id: str) -> bool:
        evaluated = self.standings[lesson_id].evaluated_success
        reached = evaluated is not None and evaluated >= self.lessons[lesson_id].stop_threshold
        return reached and self.has_levelled_off(lesson_id)

    def _standing(self, lesson_id: str) -> Standing:
        return self.standings[self._known(lesson_id)]

    def _known(self, lesson_id: str) -> str:
        if lesson_id not in self.lessons:
            raise CurriculumError(f"there is no lesson {lesson_id!r}{did_you_mean(lesson_id, self.lessons)}")
        return lesson_id

    def state_dict(self) -> dict[str, Any]:
        """All standings, as JSON-compatible data."""
        return {name: asdict(standing) for name, standing in self.standings.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore saved standings. Lessons that were not saved keep theirs."""
        restored = {self._known(name): Standing(**standing) for name, standing in state.items()}
        self.standings.update(restored)


def _share_of_successes(lesson: Lesson, rewards: Iterable[float | None]) -> float | None:
    judged = [reward for reward in rewards if reward is not None and not math.isnan(reward)]
    return sum(reward > lesson.success_above for reward in judged) / len(judged) if judged else None


def _by_id(lessons: Sequence[Lesson]) -> dict[str, Lesson]:
    if not lessons:
        raise CurriculumError("a curriculum needs at least one lesson")
    by_id: dict[str, Lesson] = {}
    for lesson in lessons:
        if lesson.lesson_id in by_id:
            raise CurriculumError(f"two lessons are called {lesson.lesson_id!r}")
        if lesson.plateau_window < 2:
            raise CurriculumError(f"lesson {lesson.lesson_id!r}: plateau_window must be at least 2")
        by_id[lesson.lesson_id] = lesson
    return by_id


def _check_dependencies(lessons: Mapping[str, Lesson]) -> None:
    for name, lesson in lessons.items():
        for dependency in lesson.dependencies:
            if dependency not in lessons:
                raise CurriculumError(
                    f"lesson {name!r} depends on {dependency!r}, which is not a lesson"
                    f"{did_you_mean(dependency, lessons)}"
                )
    done: set[str] = set()
    for name in lessons:
        _check_for_cycle(name, lessons, (), done)


def _check_for_cycle(name: str, lessons: Mapping[str, Lesson], path: tuple[str, ...], done: set[str]) -> None:
    if name in path:
        cycle = (*path[path.index(name) :], name)
        raise CurriculumError(
            "lessons depend on each other in a cycle: " + ", ".join(f"{a!r} on {b!r}" for a, b in pairwise(cycle))
        )
    if name not in done:
        for dependency in lessons[name].dependencies:
            _check_for_cycle(dependency, lessons, (*path, name), done)
        done.add(name)
