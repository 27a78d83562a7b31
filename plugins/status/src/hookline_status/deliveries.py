"""The deliveries of functions, which have no run to end with: opened at need, closed when the process exits."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hookline_hookspecs.errors import describe_error
from hookline_status.endpoint import Endpoint
from hookline_status.messages import Kind
from hookline_status.reporter import Reporter

if TYPE_CHECKING:
    from hookline_status.delivery import Delivery

__all__ = ["close_deliveries", "open_reporter", "run_began", "run_ended"]

_deliveries: dict[tuple[Endpoint, Path | None], Delivery] = {}
_unfinished: dict[Reporter, None] = {}
_lock = threading.Lock()


def open_reporter(url: str, component: str, spool_dir: str | Path | None, allow_link_local: bool) -> Reporter | None:
    """A reporter on the delivery to this endpoint. None on every rank but the first: one voice speaks for a run."""
    from hookline_status.delivery import Delivery

    endpoint = Endpoint.of(url, allow_link_local=allow_link_local)
    if int(os.environ.get("RANK", "0")) != 0:
        return None
    key = endpoint, None if spool_dir is None else Path(spool_dir).absolute()
    with _lock:
        if not _deliveries:
            atexit.register(close_deliveries)
        if key not in _deliveries:
            _deliveries[key] = Delivery(*key)
        return Reporter(_deliveries[key], component)


def run_began(reporter: Reporter) -> None:
    _unfinished[reporter] = None


def run_ended(reporter: Reporter) -> None:
    _unfinished.pop(reporter, None)


def close_deliveries() -> None:
    """Tell of trainings that never came to their end, and deliver what is left within the time that there is."""
    from hookline_status.delivery import close_all

    atexit.unregister(close_deliveries)
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    message = "the process ended before the training did" if error is None else describe_error(error)
    with _lock:
        for reporter in _unfinished:
            reporter.event("on_training_failed", {"status": "FAILURE", "message": message}, Kind.TERMINAL)
        _unfinished.clear()
        _deliveries.clear()
    close_all()
