"""What a request may be sent to, and when it is sent again."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hookline.extras import require
from hookline_hookspecs import HooklineError

__all__ = [
    "Backoff",
    "RequestError",
    "TokenError",
    "read_retry_after",
    "read_token",
    "shown_url",
    "url_problem",
    "with_retries",
]

_NOT_PRINTABLE_ASCII = re.compile(r"[^\x21-\x7e]")


class TokenError(HooklineError, ValueError):
    """A token that cannot be sent as a header."""


def url_problem(url: Any, token_variable: str) -> str | None:
    """What is wrong with a URL, to come after the name of its setting; None for nothing.

    No message repeats a password or a query.
    """
    if not isinstance(url, str):
        return f"must be a string, got {type(url).__name__}"
    if _NOT_PRINTABLE_ASCII.search(url):
        return "has a space, a control character or a letter that an address must have encoded"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if "@" in parts.netloc:
        return f"has a user name or password in it: put a token into the environment variable {token_variable} instead"
    if parts.scheme not in ("http", "https") or not host:
        return f"must be an http or https URL with a host, got {shown_url(url)!r}"
    return None


def shown_url(url: str) -> str:
    """A URL for messages: without its query, which may have a key in it, and without a user and password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else url.partition("?")[0]


def read_token(variable: str) -> str | None:
    """The token in an environment variable; None where it is unset or empty."""
    token = os.environ.get(variable, "").strip(" \t\r\n")  # the line end of a file that it was read from
    if _NOT_PRINTABLE_ASCII.search(token):
        raise TokenError(f"{variable} has a space, a control character or a letter that no header may have")
    return token or None


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
