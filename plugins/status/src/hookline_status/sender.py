"""The thread that sends the messages of the spool, oldest first. Each is sent until the endpoint accepts it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hookline.http.requests import Backoff, RequestError
from hookline_status.endpoint import TOKEN_VARIABLE, Endpoint, EndpointError
from hookline_status.spool import Spool, SpooledMessage
from hookline_status.spool_writer import SpoolWriter

if TYPE_CHECKING:
    from hookline.http.client import HTTPClient

__all__ = ["Sender"]

logger = logging.getLogger("hookline.status")

REQUEST_SECONDS: Final = 5.0
REJECTED: Final = frozenset({400, 413, 422})
"""HTTP statuses that reject the message itself, so that sending it again would not help."""
BATCH: Final = 50
IDLE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 0.25
"""The longest pause between attempts once the delivery is closing."""


class Sender:
    """Delivers at least once and in order. A message is removed from the spool when the endpoint has accepted it."""

    def __init__(
        self,
        endpoint: Endpoint,
        path: Path,
        writer: SpoolWriter,
        backoff: Backoff,
        has_work: threading.Event,
    ) -> None:
        self.rejected = 0
        """How many messages the endpoint has rejected."""
        self._endpoint = endpoint
        self._path = path
        self._writer = writer
        self._backoff = backoff
        self._has_work = has_work  # set when there may be something to do
        self._give_up_at: float | None = None
        self._failures = 0
        self._failed_at = 0.0
        self._retry_at = 0.0
        self._retry_after_until = 0.0

    def close(self, give_up_at: float) -> None:
        """Ask the thread to deliver the rest until `time.monotonic()` reaches `give_up_at`, and to end."""
        self._give_up_at = give_up_at
        self._has_work.set()

    def run(self) -> None:
        from hookline.http.client import HTTPClient  # imported on this thread, since importing httpcore is slow

        while not self._writer.is_ready.wait(IDLE_SECONDS):
            if self._is_late():
                return
        with HTTPClient(self._endpoint.url, TOKEN_VARIABLE, check_address=self._endpoint.check) as client:
            while not self._is_late():
                try:
                    assert self._writer.spool is not None, "it is ready"
                    self._deliver(self._writer.spool, client)
                    return
                except (sqlite3.Error, OSError) as error:
                    self._postpone(f"{self._path}: {error}")
                    self._wait()

    def _deliver(self, spool: Spool, client: HTTPClient) -> None:
        while not self._is_over(spool):
            if self._wait():
                continue
            messages = spool.oldest(BATCH)
            for message in messages:
                if self._is_late() or not self._deliver_one(message, spool, client):
                    break
            if not messages:
                self._rest(IDLE_SECONDS)

    def _is_late(self) -> bool:
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    def _is_over(self, spool: Spool) -> bool:
        if self._give_up_at is None:
            return False
        is_complete = self._writer.is_done.is_set()  # read before the count, so that the last messages are counted
        return (is_complete and len(spool) == 0) or self._is_late()

    def _wait(self) -> bool:
        """Wait for the next attempt, or a part of that time. Returns whether a wait was necessary."""
        now = time.monotonic()
        give_up_at, retry_at = self._give_up_at, self._retry_at
        if give_up_at is not None:
            # Time is short, so only a Retry-After of the server makes a long pause.
            retry_at = min(retry_at, self._failed_at + LAST_PAUSE_SECONDS)
        seconds = max(retry_at, self._retry_after_until) - now
        if seconds <= 0:
            return False
        self._rest(seconds if give_up_at is None else min(seconds, max(0.0, give_up_at - now)))
        return True

    def _rest(self, seconds: float) -> None:
        self._has_work.wait(seconds)
        self._has_work.clear()

    def _deliver_one(self, message: SpooledMessage, spool: Spool, client: HTTPClient) -> bool:
        left = REQUEST_SECONDS if self._give_up_at is None else self._give_up_at - time.monotonic()
        seconds = max(0.01, min(REQUEST_SECONDS, left))
        try:
            client.tell(message.body.encode(), seconds=seconds, headers={"idempotency-key": message.key})
        except EndpointError as error:
            self._postpone(str(error))
            return False
        except RequestError as error:
            if error.status not in REJECTED:
                self._postpone(str(error), error.retry_after)
                return False
            self.rejected += 1
            logger.warning("the status endpoint %s rejected a message: %s", self._endpoint.shown, error)
        if self._failures:
            logger.info("the status endpoint %s accepts messages again", self._endpoint.shown)
        self._failures, self._retry_at, self._retry_after_until = 0, 0.0, 0.0
        spool.remove(message)
        return True

    def _postpone(self, problem: str, retry_after: float | None = None) -> None:
        self._failures += 1
        self._failed_at = time.monotonic()
        self._retry_at = self._failed_at + self._backoff.seconds(self._failures)
        self._retry_after_until = self._failed_at + (retry_after or 0.0)
        if self._failures == 1:
            logger.warning(
                "status messages cannot be sent to %s (%s). They are kept in %s and sent later",
                self._endpoint.shown,
                problem,
                self._path,
            )
