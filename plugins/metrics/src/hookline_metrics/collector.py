"""Collects the metrics of an epoch: statistics of the state, new evaluation scores, and metrics of all plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline_hookspecs import Emit, TrainerState
from hookline_metrics.scalars import Merger

__all__ = ["MetricsCollector"]


class MetricsCollector:
    """Merges the metrics of all sources. Each source is read once for each step.

    :param emit: emits `collect_metrics` to other plugins; None to leave them out.
    """

    def __init__(self, emit: Emit | None = None) -> None:
        self._emit = emit
        self._merger = Merger()
        self._collected_at: tuple[Path | None, int, int] | None = None
        self._new_scores: set[str] = set()
        self._recorded_scores: dict[str, tuple[int, float]] = {}
        """The step and the value at which each score was last recorded."""

    def mark_recorded(self, state: TrainerState) -> None:
        """Treat the state's metrics as recorded. A checkpoint that a run resumes from has them in its database."""
        self._collected_at = state.run_dir, state.epoch, state.step
        self._recorded_scores = {name: (state.step, score) for name, score in state.eval_scores.items()}

    def add_new_scores(self, scores: Mapping[str, float]) -> None:
        """Record the scores of an evaluation that has ended, even where they equal the last ones."""
        self._new_scores.update(scores)

    def collect(self, state: TrainerState, own: Callable[[], Mapping[str, float]]) -> dict[str, Any]:
        """All metrics by name. Where two sources have the same name, the first wins.

        :param own: returns the metrics that this plugin has measured since the last call.
        """
        return self._merger.merge(self._sources(state, own))

    def _sources(self, state: TrainerState, own: Callable[[], Mapping[str, float]]) -> Iterator[tuple[str, Any]]:
        # Scores stay in the state until the next evaluation. Each is recorded once, at the step of its evaluation.
        scores = {name: score for name, score in state.eval_scores.items() if self._is_new(name, score, state.step)}
        if scores:
            self._new_scores = set()
            self._recorded_scores |= {name: (state.step, score) for name, score in scores.items()}
            yield "state.eval_scores", scores
        # The end of a run is usually also the end of an epoch, whose metrics were collected just before.
        position = state.run_dir, state.epoch, state.step
        if position != self._collected_at:
            self._collected_at = position
            yield "state.loss_stats", state.loss_stats
            yield "state.rollout_stats", state.rollout_stats
            yield "plugin 'metrics'", own()
            if self._emit is not None:
                for plugin, numbers in self._emit.collect_metrics(state=state).items():
                    yield f"plugin {plugin!r}", numbers

    def _is_new(self, name: str, score: float, step: int) -> bool:
        recorded_at, recorded = self._recorded_scores.get(name, (None, None))
        return recorded != score or (name in self._new_scores and recorded_at != step)
