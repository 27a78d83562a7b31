"""Decides which checkpoints to keep, the newest and the best by a score, and removes the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hookline_checkpoint.layout import find_checkpoints
from hookline_checkpoint.reading import read_metrics
from hookline_checkpoint.store import discard

__all__ = ["Keep", "Retention", "to_keep"]

logger = logging.getLogger("hookline.checkpoint")


@dataclass(frozen=True)
class Keep:
    """How many checkpoints to keep."""

    last: int = 3
    best: int = 0
    metric: str | None = None
    """The score that ranks the best."""
    mode: Literal["max", "min"] = "max"


def to_keep(newest_first: Sequence[tuple[Path, Mapping[str, float]]], keep: Keep) -> set[Path]:
    """The checkpoints to keep, given all checkpoints with their scores.

    Of equal scores the older checkpoint is kept, since later ones may only carry its score until the next evaluation.
    """
    kept = {path for path, _ in newest_first[: keep.last]}
    if keep.best and keep.metric is not None:
        sign = 1 if keep.mode == "max" else -1
        oldest_first = reversed(newest_first)
        scored = [(sign * scores[keep.metric], path) for path, scores in oldest_first if keep.metric in scores]
        scored.sort(key=lambda entry: -entry[0])
        kept |= {path for _, path in scored[: keep.best]}
    return kept


class Retention:
    """Removes checkpoints that need not be kept. It reads the scores of earlier ones from their files.

    :param damaged: invalid checkpoints. They do not count as kept, and are removed at the next pruning.
    """

    def __init__(self, keep: Keep, damaged: Iterable[Path] = ()) -> None:
        self.keep = keep
        self._damaged = set(damaged)
        self._scores: dict[Path, Mapping[str, float]] = {}
        self._in_use: set[Path] = set()
        self._lock = threading.Lock()

    def hold(self, path: Path) -> None:
        """Do not remove a checkpoint until `release`, since it is being read."""
        with self._lock:
            self._in_use.add(path)

    def release(self, path: Path) -> None:
        with self._lock:
            self._in_use.discard(path)

    def prune(self, newest: Path, metrics: Mapping[str, float]) -> None:
        """Remove older checkpoints after `newest` became durable. Later epochs than its own are not touched."""
        self._scores[newest] = metrics
        self._damaged.discard(newest)
        try:
            found = find_checkpoints(newest.parent)
            found = found[found.index(newest) :]
            intact = [(path, self._scores_of(path)) for path in found if path not in self._damaged]
            kept = to_keep(intact, self.keep)
            for path in found:
                if path not in kept:
                    self._discard(path)
        except OSError as error:
            # Only a warning, since the run is saved. If the disk gets full, the save that fails raises the error.
            logger.warning("older checkpoints in %s cannot be removed: %s", newest.parent, error)

    def _discard(self, path: Path) -> None:
        with self._lock:
            if path not in self._in_use:
                discard(path)
                self._scores.pop(path, None)

    def _scores_of(self, path: Path) -> Mapping[str, float]:
        if self.keep.best and path not in self._scores:
            self._scores[path] = read_metrics(path)
        return self._scores.get(path, {})
