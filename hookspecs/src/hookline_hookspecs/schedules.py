"""Every n, and other schedules: sets of clock ticks that know their next member.

A schedule answers one question, `next_after(tick)`; all else follows from it. Hooks, checkpoints and evaluations fire
when a tick was crossed: a schedule that was last looked at at tick `a` is due at tick `b` when a member lies in
`(a, b]`. Clocks jump (a step may be 4096 environment steps), so membership of `b` alone is not enough. A loss applies
while its schedule holds: `tick in schedule`.

Clocks count what is complete: at the end of the first epoch the clock of epochs is at 1.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["At", "Cycle", "Every", "Schedule", "Watch", "as_schedule"]

NEVER: Final = sys.maxsize


class Schedule(ABC):
    """A set of ticks. Combine two with `|` (due in either) or `&` (due in both, on one tick)."""

    __slots__ = ()

    @abstractmethod
    def next_after(self, tick: int) -> int | None:
        """The smallest due tick greater than `tick`, or None when there is none left."""

    def is_due(self, seen: int, now: int) -> bool:
        """Whether a tick after `seen`, up to and including `now`, is due."""
        due = self.next_after(seen)
        return due is not None and due <= now

    def __contains__(self, tick: int) -> bool:
        return self.is_due(tick - 1, tick)

    @property
    def period(self) -> int:
        """The number of ticks after which the set repeats itself, once past `horizon`."""
        return 1

    @property
    def horizon(self) -> int:
        """The tick from which on the set is purely periodic."""
        return 0

    def __or__(self, other: Schedule) -> Schedule:
        return Either(self, as_schedule(other))

    def __and__(self, other: Schedule) -> Schedule:
        return Both(self, as_schedule(other))


@dataclass(frozen=True, slots=True)
class Every(Schedule):
    """The multiples of `n`, after `start` (exclusive) and up to `stop` (inclusive).

    Multiples are counted from zero, not from `start`, and tick 0 is none of them unless `start` is negative.
    """

    n: int
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Every(n) needs a whole number of at least 1, got {self.n!r}")
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"Every({self.n}) is never due: stop={self.stop} is not after start={self.start}")

    def __str__(self) -> str:
        limits = [f"after {self.start}"] * (self.start != 0) + [f"up to {self.stop}"] * (self.stop is not None)
        return " ".join([f"every {self.n}", *limits])

    def next_after(self, tick: int) -> int | None:
        candidate = (max(tick, self.start) // self.n + 1) * self.n
        return None if self.stop is not None and candidate > self.stop else candidate

    @property
    def period(self) -> int:
        return self.n

    @property
    def horizon(self) -> int:
        return max(self.start, self.stop or 0)


@dataclass(frozen=True, slots=True, init=False)
class Cycle(Schedule):
    """The ticks whose position in a cycle of `length` is one of `active` (0-based)."""

    length: int
    active: tuple[int, ...]

    def __init__(self, length: int, active: Iterable[int]) -> None:
        positions = tuple(sorted(set(active)))
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"Cycle(length) needs a whole number of at least 1, got {length!r}")
        if not positions:
            raise ValueError(f"Cycle({length}, active=[]) is never due: name at least one position")
        outside = [position for position in positions if not 0 <= position < length]
        if outside:
            raise ValueError(f"Cycle({length}) has positions 0 to {length - 1}, got {outside}")
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "active", positions)

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.active))} in cycles of {self.length}"

    def next_after(self, tick: int) -> int:
        cycle, position = divmod(tick, self.length)
        later = bisect_right(self.active, position)
        if later < len(self.active):
            return cycle * self.length + self.active[later]
        return (cycle + 1) * self.length + self.active[0]

    @property
    def period(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True, init=False)
class At(Schedule):
    """The ticks that are listed."""

    ticks: tuple[int, ...]

    def __init__(self, ticks: Iterable[int]) -> None:
        listed = tuple(sorted(set(ticks)))
        if not listed:
            raise ValueError("At([]) is never due: list at least one tick")
        object.__setattr__(self, "ticks", listed)

    def __str__(self) -> str:
        return f"at {', '.join(map(str, self.ticks))}"

    def next_after(self, tick: int) -> int | None:
        later = bisect_right(self.ticks, tick)
        return self.ticks[later] if later < len(self.ticks) else None

    @property
    def horizon(self) -> int:
        return self.ticks[-1]


@dataclass(frozen=True, slots=True)
class Combined(Schedule):
    """Two schedules in one."""

    one: Schedule
    other: Schedule

    @property
    def period(self) -> int:
        return math.lcm(self.one.period, self.other.period)

    @property
    def horizon(self) -> int:
        return max(self.one.horizon, self.other.horizon)


class Either(Combined):
    """The ticks of one schedule or the other; written `a | b`."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"({self.one} or {self.other})"

    def next_after(self, tick: int) -> int | None:
        candidates = [c for c in (self.one.next_after(tick), self.other.next_after(tick)) if c is not None]
        return min(candidates, default=None)


class Both(Combined):
    """The ticks that two schedules share; written `a & b`."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"({self.one} and {self.other})"

    def next_after(self, tick: int) -> int | None:
        # Past the horizon both sets repeat, so a tick that is not shared within one period never will be.
        limit = max(tick, self.horizon) + self.period
        candidate = self.one.next_after(tick)
        while candidate is not None and candidate <= limit:
            met = self.other.next_after(candidate - 1)
            if met is None or met == candidate:
                return met
            candidate = self.one.next_after(met - 1)
        return None


def as_schedule(value: int | Schedule) -> Schedule:
    """`value` itself, or `Every(value)` for a number."""
    if isinstance(value, Schedule):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Every(value)
    raise TypeError(f"a schedule is a number of ticks, Every, Cycle or At, not {value!r}")


class Watch:
    """A schedule, and how far it has been looked at.

    :param schedule: None for one that is never due.
    :param seen: the last tick that counts as looked at; -1 for none.
    """

    __slots__ = ("next_due", "schedule", "seen")

    def __init__(self, schedule: int | Schedule | None, seen: int = -1) -> None:
        self.schedule = None if schedule is None else as_schedule(schedule)
        self.skip_to(seen)

    def skip_to(self, tick: int) -> None:
        """Count ticks up to this one as looked at, and those after it as not."""
        due = None if self.schedule is None else self.schedule.next_after(tick)
        self.seen = tick
        self.next_due = NEVER if due is None else due

    def is_due(self, now: int) -> bool:
        """Look at the clock: whether a tick was due since the last look."""
        if now < self.seen:
            self.skip_to(now - 1)  # a clock that went back starts anew
        elif self.seen < 0 < now:
            self.skip_to(0)  # tick 0, where nothing is complete, is due only when it is looked at
        if now < self.next_due:
            self.seen = now
            return False
        self.skip_to(now)
        return True
