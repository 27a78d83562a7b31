"""The client that rewards, evaluations and status messages are sent with.

It is httpcore, which httpx is built on, without what httpx adds and is not wanted here: redirects that take a token
elsewhere, cookies, proxies and passwords from the environment, and a log line with the whole address of each request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from hookline.extras import require
from hookline.http.address import read_token
from hookline.http.retries import RequestError, read_retry_after
from hookline_hookspecs.redaction import redact_text, remember_secrets

require("httpcore", "hookline.http", "http")

import httpcore  # noqa: E402

from hookline.http.connections import AddressCheck, Deadline, DeadlineBackend  # noqa: E402

__all__ = ["HTTPClient"]

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
