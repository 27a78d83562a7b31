"""Turn SIGTERM and SIGHUP into an exception, so that a terminated run ends like any failed run."""

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
"""Sent by a scheduler, by torchrun when another rank has failed, or by a closed terminal."""


class Terminated(SystemExit, Interruption):
    """A signal terminated the process.

    As a `SystemExit` it ends the process without a traceback, with the exit code that shells use for the signal.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.signal: Final = signal.Signals(number)

    def __str__(self) -> str:
        return f"terminated by {self.signal.name}"


@contextmanager
def termination_as_exception() -> Iterator[None]:
    """Raise `Terminated` when a signal arrives. In other threads than the main one it does nothing.

    A handler that the program has installed stays, such as that of another library's trainer.
    """
    with ExitStack() as handlers:
        if threading.current_thread() is threading.main_thread():
            for number in TERMINATING:
                # Not where it is ignored, as nohup does with SIGHUP. None: a handler that was not installed by Python.
                if signal.getsignal(number) in (signal.SIG_DFL, None):
                    signal.signal(number, _raise)
                    handlers.callback(signal.signal, number, signal.SIG_DFL)
        yield


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    raise Terminated(number)
