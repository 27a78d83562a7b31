"""`Outcome`: what became of a call in a worker outside the trainer's process. An error crosses over as text."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from hookline.rollout.errors import RolloutError
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.redaction import redact_text

__all__ = ["Outcome"]


class Outcome(NamedTuple):
    """A result, or an error whose class the trainer's process may not have."""

    result: Any = None
    error: str | None = None
    traceback: str = ""

    @classmethod
    def of(cls, call: Callable[[], Any]) -> Outcome:
        """Call this in the worker."""
        try:
            return cls(call())
        except Exception as error:
            return cls(error=describe_error(error), traceback=redact_text(traceback.format_exc()))

    def unwrap(self, worker: int) -> Any:
        """The result, in the trainer's process. The error is raised there."""
        if self.error is not None:
            failure = RolloutError(f"rollout worker {worker}: {self.error}")
            failure.add_note(f"in the worker process:\n{self.traceback}")
            raise failure
        return self.result
