"""`HTTPClient`: requests to one server, each with one deadline from the name lookup to the last byte."""

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

from hookline.http.requests import RequestError, read_retry_after, read_token
from hookline.importing import require
from hookline_hookspecs.redaction import redact_text, remember_secrets

require("httpcore", "hookline.http", "http")

import httpcore  # noqa: E402

__all__ = ["AddressCheck", "HTTPClient"]

AddressCheck = Callable[[str], None]
"""Raises for a numeric address that the client must not connect to."""

WRITE_SIZE: Final = 16 * 1024
"""Bytes of one write. A large write may take several sends, and each send would get the whole timeout again."""

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
SHORT_BODY_BYTES: Final = 4096
SHORT_BODY_SECONDS: Final = 0.5
"""How long the body of a response may take when only its status matters."""
SHOWN_CHARACTERS: Final = 200


class HTTPClient:
    """Sends requests to one server over persistent connections. Threads may share a client.

    :param url: a URL that `url_problem` accepts. The URLs of requests begin with it.
    :param token_variable: the environment variable with the bearer token, read by the constructor.
    :param connections: how many requests may run at once.
    :param check_address: raises for an address that the client must not connect to.
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
            # The certificates of certifi and of the system, which may include a company's own authority.
            httpcore.default_ssl_context() if url.startswith("https:") else None,
            max_connections=connections,
            network_backend=DeadlineBackend(self._deadline, check_address),
        )

    def request_json(self, method: str, path: str = "", content: object = None, *, seconds: float) -> Any:
        """Send `content` as JSON and return the JSON of the response, within `seconds`."""
        body = None if content is None else json.dumps(content).encode()
        response = self._send(method, path, body, {}, seconds, reads_body=True)
        try:
            return json.loads(response)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the response is not JSON: {error}") from error

    def post(self, body: bytes, *, seconds: float, headers: Mapping[str, str]) -> None:
        """Post a JSON body. Only the status of the response matters: a long or slow body is not read to its end."""
        self._send("POST", "", body, headers, seconds, reads_body=False)

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
        *,
        reads_body: bool,
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
                    raise self._error_of(response)
                return _read_body(response) if reads_body else self._read_beginning(response)
        except httpcore.TimeoutException as error:
            raise RequestError(f"no complete response within {seconds:g} s", is_transient=True) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise RequestError(redact_text(f"{type(error).__name__}: {error}"), is_transient=True) from error

    def _error_of(self, response: httpcore.Response) -> RequestError:
        status = response.status
        hint = ""
        if status in (401, 403):
            hint = f"; is {self._token_variable} set to a valid token?"
        elif 300 <= status < 400:
            hint = "; redirects are not followed: use the URL that it redirects to"
        retry_after = [value.decode("latin-1") for name, value in response.headers if name.lower() == b"retry-after"]
        text = redact_text(" ".join(self._read_beginning(response).decode("utf-8", "replace").split()))[
            :SHOWN_CHARACTERS
        ]
        return RequestError(
            f"status {status}{hint}{': ' if text else ''}{text}",
            status=status,
            is_transient=status in (408, 409, 425, 429) or status >= 500,
            retry_after=read_retry_after(retry_after[0] if retry_after else None),
        )

    def _read_beginning(self, response: httpcore.Response) -> bytes:
        """Read a short body to its end, so that the connection can be reused; of a long or slow one, the beginning."""
        self._deadline.shorten(SHORT_BODY_SECONDS)
        content = bytearray()
        try:
            for part in response.iter_stream():
                content += part
                if len(content) > SHORT_BODY_BYTES:
                    break
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
            pass  # the status is known, and closing the response closes the connection
        return bytes(content)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def __enter__(self) -> HTTPClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _read_body(response: httpcore.Response) -> bytes:
    content = bytearray()
    for part in response.iter_stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise RequestError(f"the response is longer than {MAX_BODY_BYTES} bytes")
    return bytes(content)


class Deadline(threading.local):
    """The time by which the request of this thread must end."""

    end = 0.0

    def set(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """End at most this many seconds from now."""
        self.end = min(self.end, time.monotonic() + seconds)

    def left(self) -> float:
        """The remaining seconds. Raises if there are none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise httpcore.TimeoutException("deadline exceeded")
        return left


class DeadlineBackend(httpcore.NetworkBackend):
    """Resolves a name once, checks all its addresses, and connects to one of them."""

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
                self._check(address)  # one bad address refuses the name
        problem: httpcore.NetworkError | httpcore.TimeoutException | None = None
        for place, address in enumerate(addresses):
            # Divide the remaining time, so that an unreachable address leaves time for the others.
            share = self._deadline.left() / (len(addresses) - place)
            try:
                stream = self._inner.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                problem = error
            else:
                return DeadlineStream(stream, self._deadline)
        raise problem or httpcore.ConnectError(f"{host} has no address")


class DeadlineStream(httpcore.NetworkStream):
    """A connection whose operations all respect the deadline."""

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
    """The numeric addresses of a host. The lookup has its own thread, because it has no timeout of its own."""
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    found: Future[list[Any]] = Future()

    def resolve() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=resolve, name="hookline-http-lookup", daemon=True).start()
    try:
        entries = found.result(seconds)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from error
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} has no address: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))
