"""`Interval`: every so many epochs, for a plugin that learns only from the run how many."""

from __future__ import annotations

from hookline_hookspecs.schedules import Every

__all__ = ["Interval"]


class Interval:
    """Asked at every epoch's end. As with `@hookimpl(every=...)` epoch 0 is not due, and epochs may be left out."""

    def __init__(self, every: int) -> None:
        self._schedule = Every(every)
        self._asked_at: int | None = None

    def is_due(self, epoch: int) -> bool:
        # A run that goes on from a checkpoint is first asked at a later epoch, and has passed nothing before it.
        due = self._schedule.next_after(epoch - 1 if self._asked_at is None else self._asked_at)
        self._asked_at = epoch
        return due is not None and due <= epoch
