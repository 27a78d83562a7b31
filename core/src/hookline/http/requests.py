"""Check URLs and tokens of requests, and retry failed ones."""

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

from hookline.importing import require
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

LONGEST_RETRY_AFTER: Final = 3600.0
"""Seconds. A longer Retry-After is most likely a mistake of the server."""

_NOT_PRINTABLE_ASCII: Final = re.compile(r"[^\x21-\x7e]")
_RNG: Final = random.Random()  # separate, so that retries do not change the random numbers of the run

T = TypeVar("T")


class TokenError(HooklineError, ValueError):
    """A token that is not valid in a header."""


def url_problem(url: Any, token_variable: str) -> str | None:
    """What is wrong with a URL, as the end of a sentence that begins with the setting's name; None if it is valid.

    The message never contains a password or query.
    """
    if not isinstance(url, str):
        return f"must be a string, got {type(url).__name__}"
    if _NOT_PRINTABLE_ASCII.search(url):
        return "has a space, a control character or a non-ASCII letter: percent-encode it"
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
    """A URL for messages, without its query, user and password, which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else url.partition("?")[0]


def read_token(variable: str) -> str | None:
    """The token in an environment variable; None if unset or empty."""
    token = os.environ.get(variable, "").strip(" \t\r\n")  # tokens read from a file often end in a newline
    if _NOT_PRINTABLE_ASCII.search(token):
        raise TokenError(
            f"{variable} has a space, a control character or a non-ASCII letter, which a header cannot have"
        )
    return token or None


class RequestError(HooklineError):
    """A request failed, or the server returned an error status."""

    def __init__(
        self, message: str, *, status: int | None = None, is_transient: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status: Final = status
        """The HTTP status; None if there was no response."""
        self.is_transient: Final = is_transient
        """Whether the same request may succeed later."""
        self.retry_after: Final = retry_after
        """The seconds of the Retry-After header."""


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with full jitter: a random wait below a bound that doubles with each failure."""

    first: float = 0.5
    longest: float = 60.0

    def seconds(self, failures: int) -> float:
        """The wait after this many failures in a row, 1 for the first."""
        bound = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return _RNG.uniform(0.0, bound)


def read_retry_after(value: str | None) -> float | None:
    """The seconds of a Retry-After header, which is a number or a date; None if invalid."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(float(value), LONGEST_RETRY_AFTER)
    import email.utils  # slow to import, and rarely needed

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
    """Make a call, and repeat it while it raises a transient `RequestError`.

    :param attempts: the maximum number of calls.
    :param seconds: no wait extends beyond this time after the first call.
    :param patience: the longest Retry-After to wait for. With a longer one the error is raised at once.
    :param stopped: setting it ends a wait with an error.
    """
    tenacity = require("tenacity", "retrying a request", "http")

    def is_retried(error: BaseException) -> bool:
        return isinstance(error, RequestError) and error.is_transient and (error.retry_after or 0.0) <= patience

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
            raise RequestError("stopped before there was a response")

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_retried),
        wait=pause,
        stop=tenacity.stop_any(*stops),
        sleep=rest,
        reraise=True,
    )
    result: T = retrying(call)
    return result
