"""SIGTERM and SIGHUP as an exception, so that a run that is told to stop ends as any failed run does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

from hookline.plugin_manager.faults import Interruption

__all__ = ["Terminated", "termination_as_exception"]

TERMINATING: Final = (signal.SIGTERM, signal.SIGHUP)
"""From a scheduler, from torchrun because another rank has failed, or from a terminal that was closed."""


class Terminated(SystemExit, Interruption):
    """The process was told to stop by a signal.

    As a `SystemExit` it ends the process with the exit code that shells give a terminated one, and no traceback.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.signal: Final = signal.Signals(number)

    def __str__(self) -> str:
        return f"terminated by {self.signal.name}"


@contextmanager
def termination_as_exception() -> Iterator[None]:
    """Raise `Terminated` in the main thread when one of the signals arrives. Other threads cannot listen to signals.

    A handler that the program has installed stays: what a signal does is for the program, or its trainer, to say.
    """
    with ExitStack() as handlers:
        if threading.current_thread() is threading.main_thread():
            for number in TERMINATING:
                # nohup has SIGHUP ignored, and means it. None stands for a handler that Python cannot put back.
                if signal.getsignal(number) in (signal.SIG_DFL, None):
                    signal.signal(number, _raise)
                    handlers.callback(signal.signal, number, signal.SIG_DFL)
        yield


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    raise Terminated(number)
