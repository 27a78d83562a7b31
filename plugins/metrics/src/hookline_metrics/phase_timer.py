"""Measures how much time a run spends in each phase, from its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal

__all__ = ["PHASES", "Phase", "PhaseTimer"]

Phase = Literal["rollout", "train", "validation", "evaluation", "checkpoint", "other"]
PHASES: Final[tuple[Phase, ...]] = ("rollout", "train", "validation", "evaluation", "checkpoint", "other")


class PhaseTimer:
    """Adds up the seconds of each phase. Phases can be nested, and time counts for the innermost.

    :param now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._open: list[Phase] = []
        self._since = now()
        self._seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._counts: tuple[int, int] | None = None
        self._has_trained = False

    @property
    def current(self) -> Phase:
        return self._open[-1] if self._open else "other"

    def enter(self, phase: Phase) -> None:
        """Start a phase. Entering it twice still needs only one `leave`."""
        self._add_up()
        self.leave(phase)
        self._open.append(phase)
        self._has_trained = self._has_trained or phase == "train"

    def leave(self, phase: Phase) -> None:
        """End a phase, and all phases inside it that were not ended."""
        self._add_up()
        if phase in self._open:
            del self._open[self._open.index(phase) :]

    def leave_all(self) -> None:
        self._add_up()
        self._open.clear()

    def _add_up(self) -> None:
        now = self._now()
        self._seconds[self.current] += now - self._since
        self._since = now

    def restart(self, step: int, agent_step: int) -> None:
        """Start to measure at these counts."""
        self.leave_all()
        self._take(step, agent_step)

    def numbers(self, step: int, agent_step: int) -> dict[str, float]:
        """Seconds and share of each phase since the last call, and the rates of steps and agent steps."""
        self._add_up()
        before = self._counts
        has_trained = self._has_trained
        seconds = self._take(step, agent_step)
        if before is None:
            return {}
        steps, agent_steps = step - before[0], agent_step - before[1]
        if steps and not has_trained:
            # A loop that emits steps but no phases: count its time as training.
            seconds["train"], seconds["other"] = seconds["train"] + seconds["other"], 0.0
        total = sum(seconds.values())
        if total <= 0:
            return {}
        # Phases with no time too, so that a killed and resumed run has the same rows as one that was never killed.
        numbers = {f"time/{phase}": spent for phase, spent in seconds.items()}
        numbers |= {f"time/{phase}_share": spent / total for phase, spent in seconds.items()}
        numbers["rate/steps_per_second"] = steps / total
        if agent_steps:
            numbers["rate/agent_steps_per_second"] = agent_steps / total
        return numbers

    def _take(self, step: int, agent_step: int) -> dict[Phase, float]:
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        self._counts, self._has_trained = (step, agent_step), False
        return seconds
