"""Spares the garbage collector what lives as long as the run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["long_lived_left_out"]


@contextmanager
def long_lived_left_out() -> Iterator[Callable[[], None]]:
    """Gives a function: whatever is there when it is first called, the collector leaves alone from then on.

    Frameworks bring half a million objects. To look through them takes a sixth of a second, in the middle of training
    and again whenever enough has been allocated; all that a run makes and drops by itself is soon looked through.
    """
    # Objects that the user's code has frozen must stay frozen in the end.
    is_ours = gc.get_freeze_count() == 0
    is_done = False

    def leave_out() -> None:
        nonlocal is_done
        if is_ours and not is_done:
            is_done = True
            gc.freeze()

    try:
        yield leave_out
    finally:
        if is_done:
            gc.unfreeze()
