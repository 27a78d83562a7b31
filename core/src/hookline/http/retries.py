"""When a request is sent again: after a failure that may pass, with growing pauses, or when the server asks for it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from hookline.extras import require
from hookline_hookspecs import HooklineError

__all__ = ["Backoff", "RequestError", "read_retry_after", "with_retries"]

T = TypeVar("T")

_RNG = random.Random()  # of its own: a run draws the same random numbers whether or not its requests fail

LONGEST_RETRY_AFTER: Final = 3600.0
"""A server that asks for more has most likely made a mistake."""


class RequestError(HooklineError):
    """A request that was not answered as it should be."""

    def __init__(
        self, message: str, *, status: int | None = None, may_pass: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        """What the server answered; None where no status came."""
        self.may_pass: Final = may_pass
        """Whether the same request may go well later."""
        self.retry_after: Final = retry_after
        """Seconds for which the server asks to be left alone."""


@dataclass(frozen=True)
class Backoff:
    """Full jitter: a wait from 0 to a bound that doubles with each failure, so that clients do not all come at once."""

    first: float = 0.5
    longest: float = 60.0

    def seconds(self, failures: int) -> float:
        """The wait after so many failures in a row, 1 for the first."""
        bound = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return _RNG.uniform(0.0, bound)


def read_retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, in either of its forms; None for anything else."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(float(value), LONGEST_RETRY_AFTER)
    import email.utils  # not at the head of the module: only a server that sends a date makes it needed

    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), LONGEST_RETRY_AFTER)


def with_retries(
    call: Callable[[], T],
    backoff: Backoff,
    *,
    attempts: int | None = None,
    seconds: float | None = None,
    patience: float = LONGEST_RETRY_AFTER,
    stopped: threading.Event | None = None,
) -> T:
    """Make a call, and make it again while it raises a `RequestError` that may pass.

    :param attempts: how often at most.
    :param seconds: no pause lasts beyond this time after the first attempt.
    :param patience: the longest Retry-After that is waited for; a longer one is raised at once.
    :param stopped: when it is set, a pause ends with an error, and no further attempt is made.
    """
    tenacity = require("tenacity", "sending a request again", "http")

    def is_worth_it(error: BaseException) -> bool:
        return isinstance(error, RequestError) and error.may_pass and (error.retry_after or 0.0) <= patience

    def pause(state: Any) -> float:
        return max(backoff.seconds(state.attempt_number), state.outcome.exception().retry_after or 0.0)

    stops = [tenacity.stop_never]
    if attempts is not None:
        stops.append(tenacity.stop_after_attempt(attempts))
    if seconds is not None:
        stops.append(tenacity.stop_before_delay(seconds))

    def rest(pause_seconds: float) -> None:
        if stopped is None:
            time.sleep(pause_seconds)
        elif stopped.wait(pause_seconds):
            raise RequestError("it was stopped before it was answered")

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_worth_it),
        wait=pause,
        stop=tenacity.stop_any(*stops),
        sleep=rest,
        reraise=True,
    )
    result: T = retrying(call)
    return result
