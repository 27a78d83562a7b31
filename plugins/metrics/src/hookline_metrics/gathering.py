"""What an epoch's report is made of: the state's statistics, new scores, other plugins' numbers and our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline_hookspecs import Emit, TrainerState
from hookline_metrics.scalars import Merger

__all__ = ["Gatherer"]


class Gatherer:
    """Merges the numbers of one moment; what was gathered once is not gathered again.

    :param emit: asks other plugins for theirs; None where nobody can be asked.
    """

    def __init__(self, emit: Emit | None = None) -> None:
        self._emit = emit
        self._merger = Merger()
        self._gathered_at: tuple[Path | None, int, int] | None = None
        self._new_scores: set[str] = set()
        self._recorded_scores: dict[str, float] = {}

    def note_new_scores(self, scores: Mapping[str, float]) -> None:
        """An evaluation has ended: its scores are new, even where they equal the last ones."""
        self._new_scores.update(scores)

    def gather(self, state: TrainerState, own: Mapping[str, float]) -> dict[str, Any]:
        """All numbers by name, each from the first source that claims it.

        :param own: those that the metrics plugin itself has measured.
        """
        return self._merger.merge(self._sources(state, own))

    def _sources(self, state: TrainerState, own: Mapping[str, float]) -> Iterator[tuple[str, Any]]:
        # Scores stay in the state until the next evaluation; each is recorded once, at the step it belongs to.
        new, recorded = self._new_scores, self._recorded_scores
        scores = {name: own for name, own in state.eval_scores.items() if name in new or recorded.get(name) != own}
        if scores:
            self._new_scores, self._recorded_scores = set(), dict(state.eval_scores)
            yield "state.eval_scores", scores
        # The end of a run most often is the end of an epoch, which has just been reported.
        moment = state.run_dir, state.epoch, state.step
        if moment != self._gathered_at:
            self._gathered_at = moment
            yield "state.loss_stats", state.loss_stats
            yield "state.rollout_stats", state.rollout_stats
            yield "plugin 'metrics'", own
            if self._emit is not None:
                for plugin, numbers in self._emit.collect_metrics(state=state).items():
                    yield f"plugin {plugin!r}", numbers
