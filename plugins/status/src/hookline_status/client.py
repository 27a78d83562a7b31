"""Sends one message at a time. This module imports httpcore, so it is itself imported by the thread that sends.

httpcore is what httpx is built on. What httpx adds is not wanted here: redirects, cookies, proxies and passwords from
the environment, and a log line with the whole address for each request.
"""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

import httpcore

from hookline_hookspecs.redaction import redact_text
from hookline_status.answers import Answer, read_retry_after
from hookline_status.endpoint import Endpoint, EndpointError
from hookline_status.guard import Deadline, GuardedBackend
from hookline_status.token import TOKEN_VARIABLE, authorization

__all__ = ["StatusClient"]

REJECTED: Final = frozenset({400, 413, 422})
"""Statuses that blame the message, not the moment: it would be refused the next time too."""
LONGEST_ANSWER: Final = 4096
ANSWER_SECONDS: Final = 0.5
"""How long the rest of an answer may take once its status is known. Nobody reads it; only a connection is saved."""


class StatusClient:
    """A connection to an endpoint, kept open between messages."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._headers = {
            "host": urlsplit(endpoint.url).netloc,
            "content-type": "application/json",
            "user-agent": "hookline-status",
            **authorization(),
        }
        self._deadline = Deadline()
        # The system's certificates, so that those of a company's own authority count.
        context = ssl.create_default_context() if endpoint.url.startswith("https:") else None
        backend = GuardedBackend(endpoint, self._deadline)
        self._pool = httpcore.ConnectionPool(context, max_connections=1, network_backend=backend)

    def post(self, body: str, key: str, seconds: float) -> Answer:
        """Try to deliver a message, all within so many seconds."""
        self._deadline.set(seconds)
        headers = [*self._headers.items(), ("idempotency-key", key)]
        try:
            with self._pool.stream("POST", self._url, headers=headers, content=body.encode()) as response:
                answer = _judge(response)
                self._skip_content(response)
                return answer
        except httpcore.TimeoutException:
            return Answer("failed", f"no answer within {seconds:.1f} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, EndpointError) as error:
            return Answer("failed", redact_text(f"{type(error).__name__}: {error}"))

    def _skip_content(self, response: httpcore.Response) -> None:
        """Read a short answer to its end, so that the connection can be used again; leave a long or slow one."""
        self._deadline.set(ANSWER_SECONDS)
        length = 0
        try:
            for part in response.iter_stream():
                length += len(part)
                if length > LONGEST_ANSWER:
                    return
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
            return  # the status was known before, and closing the response closes the connection

    def __enter__(self) -> StatusClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._pool.close()


def _judge(response: httpcore.Response) -> Answer:
    status = response.status
    if 200 <= status < 300:
        return Answer("delivered")
    if status in REJECTED:
        return Answer("rejected", f"status {status}")
    hint = ""
    if status in (401, 403):
        hint = f"; is {TOKEN_VARIABLE} set to a valid token?"
    elif 300 <= status < 400:
        hint = "; redirects are not followed, so name the address that it leads to"
    asked = [value.decode("latin-1") for name, value in response.headers if name.lower() == b"retry-after"]
    return Answer("failed", f"status {status}{hint}", read_retry_after(asked[0] if asked else None))
