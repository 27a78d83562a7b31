"""`PeriodicHook`: runs every so many steps."""

from __future__ import annotations

from hookline.hooks.hook import Hook
from hookline_hookspecs import Every, HookContext

__all__ = ["PeriodicHook"]


class PeriodicHook(Hook):
    """Runs when `step > start_step and step % frequency == 0`, and once when steps in between were passed over.

    Asked again at the same step it gives the same answer.
    """

    def __init__(self, frequency: int, start_step: int = 0) -> None:
        Every(frequency)  # an error now rather than at the first step
        self.frequency = frequency
        self.start_step = start_step
        self._step: int | None = None
        self._step_before = 0

    def should_run(self, context: HookContext) -> bool:
        step = context.step
        if step != self._step:
            # The first step that it sees, or one after a clock that went back, stands for itself alone.
            contiguous = self._step is None or step < self._step
            self._step_before = step - 1 if contiguous or self._step is None else self._step
            self._step = step
        due = Every(self.frequency, start=self.start_step).next_after(self._step_before)
        return due is not None and due <= step
