"""Sends one message at a time. This module imports httpx, so it is itself imported by the thread that sends."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import httpcore
import httpx

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


class GuardedTransport(httpx.BaseTransport):
    """httpx's requests over connections that are guarded."""

    def __init__(self, endpoint: Endpoint, deadline: Deadline) -> None:
        # The system's certificates, so that those of a company's own authority count.
        context = ssl.create_default_context() if endpoint.url.startswith("https:") else None
        backend = GuardedBackend(endpoint, deadline)
        self._pool = httpcore.ConnectionPool(context, max_connections=1, network_backend=backend)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = self._pool.handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.read(),
                extensions=request.extensions,
            )
        )
        return httpx.Response(response.status, headers=response.headers, stream=ResponseStream(response))

    def close(self) -> None:
        self._pool.close()


class ResponseStream(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class StatusClient:
    """A connection to an endpoint, kept open between messages. Follows no redirect, and takes nothing from proxies."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._deadline = Deadline()
        self._client = httpx.Client(
            transport=GuardedTransport(endpoint, self._deadline),
            headers={"content-type": "application/json", "user-agent": "hookline-status", **authorization()},
            follow_redirects=False,
            trust_env=False,
        )

    def post(self, body: str, key: str, seconds: float) -> Answer:
        """Try to deliver a message, all within so many seconds."""
        self._deadline.set(seconds)
        headers = {"idempotency-key": key}
        try:
            with self._client.stream("POST", self._url, content=body.encode(), headers=headers) as response:
                answer = _judge(response)
                self._skip_content(response)
                return answer
        except httpcore.TimeoutException:
            return Answer("failed", f"no answer within {seconds:.1f} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpx.HTTPError, EndpointError, OSError) as error:
            return Answer("failed", redact_text(f"{type(error).__name__}: {error}"))

    def _skip_content(self, response: httpx.Response) -> None:
        """Read a short answer to its end, so that the connection can be used again; leave a long or slow one."""
        self._deadline.set(ANSWER_SECONDS)
        length = 0
        try:
            for part in response.iter_raw():
                length += len(part)
                if length > LONGEST_ANSWER:
                    return
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
            return  # the status was known before, and closing the response closes the connection

    def __enter__(self) -> StatusClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._client.close()


def _judge(response: httpx.Response) -> Answer:
    status = response.status_code
    if 200 <= status < 300:
        return Answer("delivered")
    if status in REJECTED:
        return Answer("rejected", f"status {status}")
    hint = ""
    if status in (401, 403):
        hint = f"; is {TOKEN_VARIABLE} set to a valid token?"
    elif 300 <= status < 400:
        hint = "; redirects are not followed, so name the address that it leads to"
    return Answer("failed", f"status {status}{hint}", read_retry_after(response.headers.get("retry-after")))
