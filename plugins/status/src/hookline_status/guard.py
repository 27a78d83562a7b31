"""Connections that are made to checked addresses only, and that no peer can hold longer than we want.

A timeout that counts from the last byte is no help against a server that sends one now and then. Here all that happens
on a connection stands under one deadline, which is set anew for every request.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from hookline_status.endpoint import Endpoint

__all__ = ["Deadline", "GuardedBackend"]


class Deadline:
    """A moment by which a request must be over."""

    def __init__(self) -> None:
        self._moment = 0.0

    def set(self, seconds: float) -> None:
        self._moment = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left; an error when there are none."""
        left = self._moment - time.monotonic()
        if left <= 0:
            raise httpcore.TimeoutException("it took longer than it may")
        return left


class GuardedBackend(httpcore.NetworkBackend):
    """Resolves a name once, has every address of it checked, and connects to one of just these."""

    def __init__(self, endpoint: Endpoint, deadline: Deadline) -> None:
        self._endpoint = endpoint
        self._deadline = deadline
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        del timeout
        try:
            addresses = self._endpoint.resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address: {error}") from error
        problem: httpcore.NetworkError | httpcore.TimeoutException | None = None
        for place, address in enumerate(addresses):
            # A share of the time for each, so that one that does not answer leaves some for the others.
            share = self._deadline.left() / (len(addresses) - place)
            try:
                stream = self._inner.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                problem = error
            else:
                return GuardedStream(stream, self._deadline)
        raise problem or httpcore.ConnectError(f"{host} has no address")


class GuardedStream(httpcore.NetworkStream):
    """A connection under the deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        return self._inner.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        self._inner.write(buffer, self._deadline.left())

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        del timeout
        return GuardedStream(self._inner.start_tls(ssl_context, server_hostname, self._deadline.left()), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
