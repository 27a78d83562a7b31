"""`Digest`: turns what happened in a run into metrics, a moment later.

The training thread only notes what happened, as a call of one of these methods. Other threads make the calls later, in
their order. Work that is done for a second's events at once finds all it needs in the caches of the processor. Done at
each event, between gradient steps, it takes several times as long.

In all methods, `at` is a time by `time.perf_counter()`, and `time` one in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hookline_hookspecs import Episode
from hookline_metrics.collecting import Merger, NewScores
from hookline_metrics.episodes import EpisodeLog
from hookline_metrics.measurements import LessonMetrics, Phase, PhaseTimer
from hookline_metrics.progress import LiveState

__all__ = ["CollectedMetrics", "Digest", "Put"]

Sources = Sequence[tuple[str, Any]]
"""Metrics by what to call their source."""


class Put(Protocol):
    """Gives metrics to all sinks.

    :param source: where they come from, for the warning about an invalid name.
    """

    def __call__(
        self, step: int, epoch: int | None, numbers: Mapping[str, Any], time: float, source: str = "the run"
    ) -> None: ...


class CollectedMetrics(NamedTuple):
    """What the training thread collects at the end of an epoch, and before a checkpoint."""

    position: tuple[Path | None, int, int]
    """The run's folder, epoch and step."""
    agent_step: int
    scores: Mapping[str, float]
    """All scores in the state."""
    own: Mapping[str, float]
    stats: Sources | None
    """None where they were collected at this position before. Then there is nothing but scores."""
    of_plugins: Sources = ()


class Digest:
    """The metrics of one run."""

    def __init__(self, began: float, live: LiveState, episodes: EpisodeLog, put: Put) -> None:
        self.lessons = LessonMetrics()
        self.scores = NewScores()
        self._live = live
        self._episodes = episodes
        self._put = put
        self._phases = PhaseTimer(began)
        self._merger = Merger()

    # -- epochs and phases ----------------------------------------------------------------------------------------

    def begin_training(self, step: int, agent_step: int, at: float) -> None:
        self._phases.restart(step, agent_step, at)

    def begin_epoch(self, epoch: int, total_epochs: int | None, total_steps: int | None, at: float) -> None:
        live = self._live
        live.epoch, live.total_epochs, live.total_steps = epoch, total_epochs, total_steps
        self.leave_all(at)

    def enter(self, phase: Phase, at: float) -> None:
        self._phases.enter(phase, at)
        self._live.phase = phase

    def leave(self, phase: Phase, at: float) -> None:
        self._phases.leave(phase, at)
        self._live.phase = self._phases.current

    def leave_all(self, at: float) -> None:
        self._phases.leave_all(at)
        self._live.phase = self._phases.current

    # -- metrics --------------------------------------------------------------------------------------------------

    def add_report(self, step: int, numbers: dict[str, Any], time: float) -> None:
        """The metrics of a step or a validation."""
        live = self._live
        # Not metrics, since every row has its step and epoch.
        epoch = numbers.pop("current_epoch", None)
        numbers.pop("current_step", None)
        numbers.pop("total_steps", None)
        self._put(step, epoch if type(epoch) is int else live.epoch, numbers, time)
        live.numbers = {**live.numbers, **numbers} if step == live.numbers_step else numbers
        live.step = live.numbers_step = step

    def add_collected(self, collected: CollectedMetrics, at: float, time: float) -> None:
        live, (_, epoch, step) = self._live, collected.position
        self._episodes.release()
        live.step = step
        numbers = self._merger.merge(self._sources(collected, at))
        # Metrics of the last step's own report win over those of the state, which are means over the epoch.
        reported = live.numbers
        if live.numbers_step == step and not reported.keys().isdisjoint(numbers):
            numbers = {name: value for name, value in numbers.items() if name not in reported}
        if numbers:
            self._put(step, epoch, numbers, time)

    def _sources(self, collected: CollectedMetrics, at: float) -> Iterator[tuple[str, Any]]:
        _, _, step = collected.position
        scores = self.scores.take(collected.scores, step)
        if scores:
            yield "state.eval_scores", scores
        if collected.stats is not None:
            yield from collected.stats
            yield "plugin 'metrics'", {**self._phases.numbers(step, collected.agent_step, at), **collected.own}
            yield from collected.of_plugins

    # -- rollouts -------------------------------------------------------------------------------------------------

    def update_weights(self) -> None:
        # Only a run with a rollout worker does that. Its epochs before the first rollout are a warm start.
        if self._live.epoch_kind == "train":
            self._live.enter_epochs("warm start")

    def begin_rollout(self, at: float) -> None:
        self._live.enter_epochs("rollout")
        self._episodes.release()
        self.enter("rollout", at)

    def end_rollout(
        self,
        lesson: str | None,
        performance: float | None,
        stats: Mapping[str, float],
        episodes: Sequence[Episode],
        at: float,
        time: float,
    ) -> None:
        live = self._live
        self.leave("rollout", at)
        live.lesson, live.reward = lesson, stats.get("mean_reward", live.reward)
        self.hold(lesson, episodes)
        self._add_lessons(self.lessons.after_rollout(lesson, performance, stats), time)

    def begin_train_phase(self, at: float) -> None:
        self._episodes.release()
        self.enter("train", at)

    def hold(self, lesson: str | None, episodes: Sequence[Episode]) -> None:
        """Take a sample of these episodes."""
        self._episodes.hold(self._live.step, self._live.epoch, lesson, episodes)

    def update_curriculum(self, changes: Mapping[str, Any], time: float) -> None:
        self._add_lessons(self.lessons.after_update(changes), time)

    def _add_lessons(self, numbers: Mapping[str, float], time: float) -> None:
        if numbers:
            self._put(self._live.step, self._live.epoch, numbers, time, "the curriculum's lessons")
