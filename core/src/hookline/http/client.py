"""`HTTPClient`: one request with one deadline, from the name lookup to the last byte."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore

from hookline.extras import require
from hookline.http.requests import RequestError, read_retry_after, read_token
from hookline_hookspecs.redaction import redact_text, remember_secrets

__all__ = ["AddressCheck", "Deadline", "DeadlineBackend", "HTTPClient"]

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


require("httpcore", "hookline.http", "http")


LONGEST_ANSWER: Final = 64 * 1024 * 1024
SHORT_ANSWER: Final = 4096
SHORT_ANSWER_SECONDS: Final = 0.5
"""How long the content of an answer may take when only its status counts."""
SHOWN_CHARACTERS: Final = 200


class HTTPClient:
    """Sends requests to one server, several at a time where several threads do. Connections are kept open.

    :param url: an address that `url_problem` finds nothing wrong with. Those of requests begin with it.
    :param token_variable: the environment variable with the bearer token, read now.
    :param connections: how many requests may be under way at once.
    :param check_address: raises an error for an address that must not be connected to.
    """

    def __init__(
        self, url: str, token_variable: str, *, connections: int = 1, check_address: AddressCheck | None = None
    ) -> None:
        remember_secrets(url)
        self._url = url
        self._token_variable = token_variable
        token = read_token(token_variable)
        self._headers = {
            "host": urlsplit(url).netloc,
            "user-agent": "hookline",
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._deadline = Deadline()
        self._pool = httpcore.ConnectionPool(
            # Both the certificates of the system, which may have a company's own authority, and those of certifi.
            httpcore.default_ssl_context() if url.startswith("https:") else None,
            max_connections=connections,
            network_backend=DeadlineBackend(self._deadline, check_address),
        )

    def ask(self, method: str, path: str = "", content: object = None, *, seconds: float) -> Any:
        """Send `content` as JSON, and return the JSON of the answer. All of it takes `seconds` at most."""
        body = None if content is None else json.dumps(content).encode()
        answer = self._send(method, path, body, {}, seconds, wants_content=True)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the answer is not JSON: {error}") from error

    def tell(self, body: bytes, *, seconds: float, headers: Mapping[str, str]) -> None:
        """Post a body of JSON. The status of the answer is all that counts: a long or slow content is not read."""
        self._send("POST", "", body, headers, seconds, wants_content=False)

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
        *,
        wants_content: bool,
    ) -> bytes:
        own = {**self._headers, **headers}
        if body is not None:
            own["content-type"] = "application/json"
        self._deadline.set(seconds)
        waiting = {"timeout": {"pool": seconds}}
        try:
            with self._pool.stream(
                method, self._url + path, headers=list(own.items()), content=body, extensions=waiting
            ) as response:
                if not 200 <= response.status < 300:
                    raise self._refusal(response)
                return _whole(response) if wants_content else self._beginning(response)
        except httpcore.TimeoutException as error:
            raise RequestError(f"no whole answer within {seconds:g} s", may_pass=True) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise RequestError(redact_text(f"{type(error).__name__}: {error}"), may_pass=True) from error

    def _refusal(self, response: httpcore.Response) -> RequestError:
        status = response.status
        hint = ""
        if status in (401, 403):
            hint = f"; is {self._token_variable} set to a valid token?"
        elif 300 <= status < 400:
            hint = "; redirects are not followed, so name the address that it leads to"
        asked = [value.decode("latin-1") for name, value in response.headers if name.lower() == b"retry-after"]
        said = redact_text(" ".join(self._beginning(response).decode("utf-8", "replace").split()))[:SHOWN_CHARACTERS]
        return RequestError(
            f"status {status}{hint}{': ' if said else ''}{said}",
            status=status,
            may_pass=status in (408, 409, 425, 429) or status >= 500,
            retry_after=read_retry_after(asked[0] if asked else None),
        )

    def _beginning(self, response: httpcore.Response) -> bytes:
        """A short content to its end, so that the connection can be used again; the beginning of a long or slow one."""
        self._deadline.shorten(SHORT_ANSWER_SECONDS)
        content = bytearray()
        try:
            for part in response.iter_stream():
                content += part
                if len(content) > SHORT_ANSWER:
                    break
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
            pass  # the status was known before, and closing the response closes the connection
        return bytes(content)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def __enter__(self) -> HTTPClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _whole(response: httpcore.Response) -> bytes:
    content = bytearray()
    for part in response.iter_stream():
        content += part
        if len(content) > LONGEST_ANSWER:
            raise RequestError(f"the answer is longer than {LONGEST_ANSWER} bytes")
    return bytes(content)
