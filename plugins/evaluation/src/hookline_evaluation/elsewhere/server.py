"""The evaluation server: `hookline evaluate --serve`.

    POST /evaluations       {"id", "path", "uri", "request"}; 202 when it has begun, 409 while another one goes on
    GET /evaluations/ID     {"state": "running" | "done" | "failed", "result": {"scores", "records"}, "error"}

One evaluation at a time, each in a process of its own. Building a run's trainer again may run code from the run's
folder, so a checkpoint is evaluated only if it lies in the server's root folder. Where there is a token, every call
must have it as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from hookline_evaluation.elsewhere.checkpoints import find_checkpoint, run_of
from hookline_evaluation.elsewhere.child_process import ChildEvaluation
from hookline_evaluation.elsewhere.messages import Ticket, request_from_json
from hookline_evaluation.elsewhere.remote import TOKEN_VARIABLE
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.redaction import redact, redact_text

__all__ = ["EvaluationServer"]

logger = logging.getLogger("hookline.evaluation")

LARGEST_BODY: Final = 1_000_000
KEPT: Final = 16
"""How many evaluations the server remembers."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


class RefusedError(Exception):
    """A call that is not carried out."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EvaluationServer(ThreadingHTTPServer):
    """Listens from the beginning; `serve_forever()` answers, `close()` ends it and what it evaluates.

    :param root: only checkpoints in this folder are evaluated.
    :param token: what callers must know; needed where others than this machine can call.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, *, root: Path, token: str | None, timeout_seconds: float) -> None:
        self.is_loopback = _is_loopback(host)
        if token is None and not self.is_loopback:
            raise EvaluationError(
                f"a server on {host} can be reached from other machines: set a token in {TOKEN_VARIABLE}, "
                "or serve on 127.0.0.1"
            )
        self.token = token
        self._root = root.resolve()
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._running: dict[str, ChildEvaluation] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        super().__init__((host, port), _Handler)

    def begin(self, body: Any) -> dict[str, Any]:
        """Begin an evaluation, or say how the one with this id stands."""
        own_id = body.get("id") if isinstance(body, dict) else None
        if not isinstance(own_id, str) or not _ID.fullmatch(own_id):
            raise RefusedError(
                HTTPStatus.UNPROCESSABLE_ENTITY, "the body must be an object with an id of letters and digits"
            )
        try:
            request = request_from_json(body.get("request", {}))
        except ValueError as error:
            raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        checkpoint = self._allowed_checkpoint(body.get("path"), body.get("uri"))
        with self._lock:
            self._settle()
            if own_id in self._running or own_id in self._ended:
                return self._standing(own_id)
            if self._running:
                raise RefusedError(HTTPStatus.CONFLICT, "another evaluation goes on: try again later")
            logger.info("evaluating %s", checkpoint)
            self._running[own_id] = ChildEvaluation(Ticket(checkpoint, request=request), self._timeout_seconds)
            return {"state": "running"}

    def standing(self, own_id: str) -> dict[str, Any]:
        """How an evaluation stands."""
        with self._lock:
            self._settle()
            return self._standing(own_id)

    def _standing(self, own_id: str) -> dict[str, Any]:
        if own_id in self._running:
            return {"state": "running"}
        if own_id in self._ended:
            return self._ended[own_id]
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is no such evaluation")

    def _settle(self) -> None:
        for own_id, evaluation in list(self._running.items()):
            if evaluation.wait(0):
                try:
                    self._ended[own_id] = {"state": "done", "result": evaluation.answer().to_json()}
                except EvaluationError as error:
                    logger.warning("%s", error)
                    self._ended[own_id] = {"state": "failed", "error": str(error)}
                finally:
                    evaluation.stop()
                    del self._running[own_id]
                while len(self._ended) > KEPT:
                    del self._ended[next(iter(self._ended))]

    def _allowed_checkpoint(self, path: Any, uri: Any) -> Path:
        for candidate in _paths(path, uri):
            # The same answer for what is elsewhere, for what is not there and for what no folder can be called.
            with suppress(OSError, ValueError, RuntimeError):  # the last for links that lead to themselves
                resolved = candidate.resolve()
                if resolved.is_relative_to(self._root) and resolved.is_dir():
                    try:
                        checkpoint = find_checkpoint(resolved).resolve()
                        run = run_of(checkpoint)
                    except EvaluationError as error:
                        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
                    if checkpoint.is_relative_to(self._root) and run.is_relative_to(self._root):
                        return checkpoint
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "no such checkpoint in the server's root folder: it reads paths and file:// URIs in there",
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line for a caller that goes away in the middle of a call, in place of a traceback."""
        del request
        error = sys.exception()
        logger.info("%s got no answer: %s: %s", client_address[0], type(error).__name__, redact_text(str(error)))

    def close(self) -> None:
        """Stop listening, and end what is being evaluated."""
        self.server_close()
        with self._lock:
            for evaluation in self._running.values():
                evaluation.stop()
            self._running.clear()


class _Handler(BaseHTTPRequestHandler):
    server: EvaluationServer
    timeout = 30  # of a caller that says nothing
    default_request_version = "HTTP/1.0"  # of a call that does not say: it is answered with a status
    server_version = "hookline"
    sys_version = ""

    def do_POST(self) -> None:
        self._answer(HTTPStatus.ACCEPTED, self._begin)

    def do_GET(self) -> None:
        self._answer(HTTPStatus.OK, self._look)

    def _begin(self) -> dict[str, Any]:
        if self.path != "/evaluations":
            raise RefusedError(HTTPStatus.NOT_FOUND, "evaluations are posted to /evaluations")
        # A page in a browser on this machine cannot send this type without asking first.
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
        length = self.headers.get("Content-Length", "")
        # Its digits are counted first: Python reads no number of thousands of them.
        if not length.isdecimal() or len(length) > len(str(LARGEST_BODY)) or int(length) > LARGEST_BODY:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must have a length of up to {LARGEST_BODY}"
            )
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is shorter than its Content-Length")
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
        return self.server.begin(body)

    def _look(self) -> dict[str, Any]:
        folder, _, own_id = self.path.rpartition("/")
        if folder != "/evaluations":
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here; ask for /evaluations/ID")
        return self.server.standing(own_id)

    def _answer(self, status: HTTPStatus, carry_out: Callable[[], dict[str, Any]]) -> None:
        try:
            self._check_caller()
            content = carry_out()
        except RefusedError as refused:
            status, content = refused.status, {"error": str(refused)}
        except (ConnectionError, TimeoutError):
            raise  # there is no one to answer
        except Exception as error:
            logger.error("%s", describe_error(error))
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the server could not make sense of the call"}
        self._send(status, content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Calls that the standard library refuses, such as unknown methods, are answered in JSON too."""
        del explain
        self._send(HTTPStatus(code), {"error": message or HTTPStatus(code).description})

    def _send(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        body = json.dumps(redact(content, by_names=False), allow_nan=False).encode()
        if status >= HTTPStatus.BAD_REQUEST:
            logger.info(
                "%s was refused: %s %s", self.address_string(), status.value, redact_text(str(content["error"]))
            )
        self.send_response(status)
        if status is HTTPStatus.CONFLICT:
            self.send_header("Retry-After", "1")
        if status >= HTTPStatus.BAD_REQUEST:
            self.send_header("Connection", "close")  # what is left of the call's body is not read
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _check_caller(self) -> None:
        token = self.server.token
        if token is None:
            # Without a token, a name that a web page has resolved to this machine must be refused.
            try:
                host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            except ValueError:  # of what looks like an IPv6 address and is none
                host = ""
            if not _is_loopback(host):
                raise RefusedError(HTTPStatus.FORBIDDEN, "this server is for callers on its own machine")
            return
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode()):
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.debug("%s %s", self.address_string(), redact_text(format % arguments))


def _paths(path: Any, uri: Any) -> Iterator[Path]:
    """Where a caller says that the checkpoint is."""
    if isinstance(path, str) and path:
        yield Path(path)
    with suppress(ValueError):  # of what looks like an IPv6 address and is none
        if isinstance(uri, str) and urlsplit(uri).scheme == "file":
            yield Path(unquote(urlsplit(uri).path))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
