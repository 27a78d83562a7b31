"""SIGTERM as an exception, so that a run that is told to stop ends as any failed run does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Terminated", "sigterm_as_exception"]


class Terminated(SystemExit):
    """The process was told to stop by SIGTERM: by a scheduler, or by torchrun because another rank has failed.

    As a `SystemExit` it ends the process with the exit code that shells give a terminated one, and no traceback.
    """

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "terminated by SIGTERM"


@contextmanager
def sigterm_as_exception() -> Iterator[None]:
    """Raise `Terminated` in the main thread when SIGTERM arrives. Other threads cannot listen to signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        # None stands for a handler that was not installed from Python, which Python cannot put back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _raise(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated
