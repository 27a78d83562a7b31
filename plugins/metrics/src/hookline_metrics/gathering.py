"""What an epoch's report is made of: the state's statistics, new scores, other plugins' numbers and our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline_hookspecs import Emit, TrainerState
from hookline_metrics.scalars import Merger

__all__ = ["Gatherer"]


class Gatherer:
    """Merges the numbers of one moment; what was gathered once is not gathered again.

    :param emit: asks other plugins for theirs; None where no plugin can be asked.
    """

    def __init__(self, emit: Emit | None = None) -> None:
        self._emit = emit
        self._merger = Merger()
        self._gathered_at: tuple[Path | None, int, int] | None = None
        self._new_scores: set[str] = set()
        self._recorded_scores: dict[str, tuple[int, float]] = {}
        """The value of each score when it was last recorded, and the step."""

    def note_restored(self, state: TrainerState) -> None:
        """The run goes on from a checkpoint, and what the state holds was recorded before that was taken."""
        self._gathered_at = state.run_dir, state.epoch, state.step
        self._recorded_scores = {name: (state.step, score) for name, score in state.eval_scores.items()}

    def note_new_scores(self, scores: Mapping[str, float]) -> None:
        """An evaluation has ended: its scores are new, even where they equal the last ones."""
        self._new_scores.update(scores)

    def gather(self, state: TrainerState, own: Callable[[], Mapping[str, float]]) -> dict[str, Any]:
        """All numbers by name, each from the first source that claims it.

        :param own: gives those that the metrics plugin itself has measured since it was last asked.
        """
        return self._merger.merge(self._sources(state, own))

    def _sources(self, state: TrainerState, own: Callable[[], Mapping[str, float]]) -> Iterator[tuple[str, Any]]:
        # Scores stay in the state until the next evaluation; each is recorded once, at the step it belongs to.
        scores = {name: score for name, score in state.eval_scores.items() if self._is_new(name, score, state.step)}
        if scores:
            self._new_scores = set()
            self._recorded_scores |= {name: (state.step, score) for name, score in scores.items()}
            yield "state.eval_scores", scores
        # The end of a run most often is the end of an epoch, which has just been reported.
        moment = state.run_dir, state.epoch, state.step
        if moment != self._gathered_at:
            self._gathered_at = moment
            yield "state.loss_stats", state.loss_stats
            yield "state.rollout_stats", state.rollout_stats
            yield "plugin 'metrics'", own()
            if self._emit is not None:
                for plugin, numbers in self._emit.collect_metrics(state=state).items():
                    yield f"plugin {plugin!r}", numbers

    def _is_new(self, name: str, score: float, step: int) -> bool:
        recorded_at, recorded = self._recorded_scores.get(name, (None, None))
        return recorded != score or (name in self._new_scores and recorded_at != step)
