"""Connections that no peer can hold longer than a request may take, to addresses that were checked.

A timeout that counts from the last byte is no help against a server that sends one now and then. Here all that happens
on a connection is under one deadline: looking up the name, connecting, the handshake, every read and every write.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any, Final

import httpcore

__all__ = ["AddressCheck", "Deadline", "DeadlineBackend"]

AddressCheck = Callable[[str], None]
"""Raises an error for a numeric address that must not be connected to."""

WRITE_SIZE: Final = 16 * 1024
"""A write may be sent in parts, and each would have the whole time anew. Small ones leave no room for that."""


class Deadline(threading.local):
    """The moment by which the request of this thread must be over."""

    moment = 0.0

    def set(self, seconds: float) -> None:
        self.moment = time.monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Leave at most so many seconds from now."""
        self.moment = min(self.moment, time.monotonic() + seconds)

    def left(self) -> float:
        """The seconds that are left; an error when there are none."""
        left = self.moment - time.monotonic()
        if left <= 0:
            raise httpcore.TimeoutException("it took longer than it may")
        return left


class DeadlineBackend(httpcore.NetworkBackend):
    """Looks a name up once, has every address of it checked, and connects to one of just these."""

    def __init__(self, deadline: Deadline, check: AddressCheck | None = None) -> None:
        self._deadline = deadline
        self._check = check
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
        addresses = _look_up(host, port, self._deadline.left())
        if self._check is not None:
            for address in addresses:
                self._check(address)  # one that is refused spoils the name
        problem: httpcore.NetworkError | httpcore.TimeoutException | None = None
        for place, address in enumerate(addresses):
            # A share of the time for each, so that one that does not answer leaves some for the others.
            share = self._deadline.left() / (len(addresses) - place)
            try:
                stream = self._inner.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                problem = error
            else:
                return DeadlineStream(stream, self._deadline)
        raise problem or httpcore.ConnectError(f"{host} has no address")


class DeadlineStream(httpcore.NetworkStream):
    """A connection under the deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        return self._inner.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        for start in range(0, len(buffer), WRITE_SIZE):
            self._inner.write(buffer[start : start + WRITE_SIZE], self._deadline.left())

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        del timeout
        stream = self._inner.start_tls(ssl_context, server_hostname, self._deadline.left())
        return DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _look_up(host: str, port: int, seconds: float) -> list[str]:
    """The numeric addresses of a host. A name service that hangs is left to a thread that nothing waits for."""
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    found: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=ask, name="hookline-http-lookup", daemon=True).start()
    try:
        entries = found.result(seconds)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"{host} was not looked up in time") from error
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} has no address: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))
