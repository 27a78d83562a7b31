"""Schedules of losses: windows of epochs or steps, and positions in a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from hookline.errors import did_you_mean
from hookline.training.errors import TrainerConfigError
from hookline_hookspecs import Cycle, Every, Schedule, TrainerState

__all__ = ["LossSchedule", "Window"]


@dataclass(frozen=True)
class Window:
    """From `begin` (inclusive) to `end` (exclusive), at the `active` positions of each cycle."""

    begin: int = 0
    end: int | None = None
    """None for no end."""
    cycle: int = 1
    """The length of a cycle. Cycles start at epoch or step 0, not at `begin`."""
    active: tuple[int, ...] = (0,)
    """The positions in a cycle, from 0, at which the loss applies."""
    clock: Literal["epoch", "step"] = "epoch"

    def __post_init__(self) -> None:
        object.__setattr__(self, "active", tuple(sorted(set(self.active))))
        if self.begin < 0 or (self.end is not None and self.end <= self.begin):
            raise TrainerConfigError(f"{self} never applies: it needs 0 <= begin < end")
        if self.cycle < 1 or not self.active or not all(0 <= position < self.cycle for position in self.active):
            raise TrainerConfigError(f"{self}: active must name positions from 0 to {self.cycle - 1}")
        if self.clock not in ("epoch", "step"):
            raise TrainerConfigError(f"{self}: clock must be 'epoch' or 'step'{did_you_mean(self.clock, CLOCKS)}")

    @cached_property
    def schedule(self) -> Schedule:
        return Cycle(self.cycle, self.active) & Every(1, self.begin - 1, None if self.end is None else self.end - 1)


CLOCKS = ("epoch", "step")


class LossSchedule:
    """Applies in any of its windows. Without windows it always applies."""

    def __init__(self, windows: Iterable[Window | Mapping[str, Any]] = ()) -> None:
        self.windows: Sequence[Window] = [_as_window(window) for window in windows]

    def applies_now(self, state: TrainerState) -> bool:
        """Whether the loss applies to the next gradient step."""
        return self.applies_in_epoch(state, 1)

    def applies_in_epoch(self, state: TrainerState, steps: int) -> bool:
        """Whether the loss applies to any of the next `steps` gradient steps of this epoch."""
        return not self.windows or any(
            state.epoch in window.schedule
            if window.clock == "epoch"
            else window.schedule.is_due(state.step - 1, state.step + steps - 1)
            for window in self.windows
        )


def _as_window(window: Window | Mapping[str, Any]) -> Window:
    if isinstance(window, Window):
        return window
    known = [field.name for field in fields(Window)]
    for key in window:
        if key not in known:
            raise TrainerConfigError(f"a window of a schedule has no {key!r}{did_you_mean(key, known)}")
    return Window(**window)
