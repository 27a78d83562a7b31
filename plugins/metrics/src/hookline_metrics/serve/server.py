"""The server: on loopback only, behind a token, for reading only.

Any web page can send requests to a server on loopback, and can make its own host name lead there (DNS rebinding). So a
request is answered if

- its `Host` is a name of loopback,
- its `Origin`, where it has one, is this server,
- it has the token: in the URL, as it is printed, which sets a cookie and is then removed from the address bar; in that
  cookie; or as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import errno
import hmac
import logging
import secrets
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

from hookline_hookspecs import HooklineError
from hookline_hookspecs.errors import describe_error
from hookline_metrics.serve.pages import PLAIN, Content, Pages

__all__ = ["RunServer"]

logger = logging.getLogger("hookline.metrics")

ADDRESS: Final = "127.0.0.1"
LOOPBACK: Final = frozenset({ADDRESS, "localhost", "::1"})
IDLE_SECONDS: Final = 60.0
MAX_FIELDS: Final = 1000
"""Runs that can be compared at once, more or less."""


class RunServer(ThreadingHTTPServer):
    """Serves the runs in a folder. `serve_forever` runs it, `shutdown` on another thread ends it.

    :param folder: a folder of runs, or the folder of a run.
    :param port: 0 for a free one.
    """

    daemon_threads = True  # an open connection must not keep the process alive

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.pages: Final = Pages(folder)
        self.token: Final = secrets.token_urlsafe(24)
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            what = "it is in use" if in_use else getattr(error, "strerror", None) or str(error)
            raise HooklineError(f"port {port} cannot be used: {what}. --port 0 takes a free one") from error

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        return f"http://{ADDRESS}:{self.server_port}/?{urlencode({'token': self.token})}"

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers share cookies between all ports of a host."""
        return f"hookline-{self.server_port}"

    def has_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection has broken. A browser may end one at any time."""
        del request
        logger.debug("a connection to %s has failed", client_address, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hookline", ""
    timeout = IDLE_SECONDS
    server: RunServer

    def do_GET(self) -> None:
        try:
            self._answer()
        except ConnectionError:
            self.close_connection = True
        except Exception as error:
            logger.exception("the page %s could not be made", self.path.partition("?")[0])
            self._say(500, f"This page could not be made: {describe_error(error)}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> None:
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=MAX_FIELDS)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        problem = self._problem()
        if problem is not None:
            self._say(403, problem)
        elif "token" in query and self.server.has_token(query["token"][0]):
            self._hide_token(url, query)
        elif not self.server.has_token(self._token()):
            self._say(403, "The token is missing or wrong: open the URL that `hookline serve` has printed.")
        else:
            self._serve(url.path, query)

    def _problem(self) -> str | None:
        """Why the request may come from another web page; None if it does not."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or _host_name(hosts[0]) not in LOOPBACK:
            return "The host is not this machine: open the URL that `hookline serve` has printed."
        if any(origin != f"http://{hosts[0]}" for origin in self.headers.get_all("Origin", [])):
            return "The request comes from another web page."
        return None

    def _token(self) -> str | None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return None
        return None if found is None else found.value

    def _hide_token(self, url: SplitResult, query: dict[str, list[str]]) -> None:
        """Put the token into a cookie, and redirect to the address without it."""
        rest = urlencode({name: values for name, values in query.items() if name != "token"}, doseq=True)
        # A path that begins with two slashes would lead to another host.
        target = "/" + url.path.lstrip("/") + (f"?{rest}" if rest else "")
        # Lax and not Strict: the link may be clicked in a terminal that is a web page itself.
        cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Lax"
        self._say(303, "See the address without the token.", {"Location": target, "Set-Cookie": cookie})

    def _serve(self, path: str, query: dict[str, list[str]]) -> None:
        resource = self.server.pages.find(path, query)
        tag = f'"{resource.version}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(Content(b"", status=304), {"ETag": tag})
        else:
            self._send(resource.make(), {"ETag": tag})

    def _say(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._send(Content(f"{message}\n".encode(errors="replace"), PLAIN, status), headers or {})

    def _send(self, content: Content, headers: dict[str, str]) -> None:
        self.send_response(content.status)
        for name, value in {
            "Content-Type": content.kind,
            "Content-Length": str(len(content.body)),
            "Content-Security-Policy": content.policy,
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is not HTTP, or has another method than GET and HEAD."""
        del message, explain  # they quote the request
        self.close_connection = True  # its body, if it has one, is not read
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._say(405, "These pages are for reading only.", {"Allow": "GET, HEAD"})
        else:
            self._say(code, HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request line may have the token."""


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
