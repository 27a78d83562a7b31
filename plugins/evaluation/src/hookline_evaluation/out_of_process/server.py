"""The evaluation server: `hookline evaluate --serve`.

    POST /evaluations       {"id", "path", "uri", "request"}; 202 if it has started, 409 while another one is running
    GET /evaluations/ID     {"state": "running" | "done" | "failed", "result": {"scores", "records"}, "error"}

There is one evaluation at a time, each in a child process. Rebuilding a run's trainer may run code from the run's
folder, so only checkpoints in the server's root folder are evaluated. If there is a token, every call must have the
header `Authorization: Bearer TOKEN`.
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

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.checkpoints import find_checkpoint, run_of
from hookline_evaluation.out_of_process.child_process import ChildEvaluation
from hookline_evaluation.out_of_process.client import TOKEN_VARIABLE
from hookline_evaluation.out_of_process.jobs import EvaluationJob, request_from_json
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.redaction import redact, redact_text

__all__ = ["EvaluationServer"]

logger = logging.getLogger("hookline.evaluation")

MAX_BODY: Final = 1_000_000
MAX_ENDED: Final = 16
"""How many ended evaluations the server remembers."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


class RefusedError(Exception):
    """A call is refused with this HTTP status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EvaluationServer(ThreadingHTTPServer):
    """Listens at once. `serve_forever()` handles calls, `close()` stops the server and the running evaluation.

    :param root: only checkpoints in this folder are evaluated.
    :param token: the token that calls must have. Required unless the server listens on loopback.
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
        """Start an evaluation. If there is one with this id already, return its state."""
        evaluation_id = body.get("id") if isinstance(body, dict) else None
        if not isinstance(evaluation_id, str) or not _ID.fullmatch(evaluation_id):
            raise RefusedError(
                HTTPStatus.UNPROCESSABLE_ENTITY, "the body must be an object with an id of letters and digits"
            )
        try:
            request = request_from_json(body.get("request", {}))
        except ValueError as error:
            raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        checkpoint = self._allowed_checkpoint(body.get("path"), body.get("uri"))
        with self._lock:
            self._collect_ended()
            if evaluation_id in self._running or evaluation_id in self._ended:
                return self._state_of(evaluation_id)
            if self._running:
                raise RefusedError(HTTPStatus.CONFLICT, "another evaluation is running: try again later")
            logger.info("evaluating %s", checkpoint)
            self._running[evaluation_id] = ChildEvaluation(
                EvaluationJob(checkpoint, request=request), self._timeout_seconds
            )
            return {"state": "running"}

    def state_of(self, evaluation_id: str) -> dict[str, Any]:
        """The state of an evaluation."""
        with self._lock:
            self._collect_ended()
            return self._state_of(evaluation_id)

    def _state_of(self, evaluation_id: str) -> dict[str, Any]:
        if evaluation_id in self._running:
            return {"state": "running"}
        if evaluation_id in self._ended:
            return self._ended[evaluation_id]
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is no such evaluation")

    def _collect_ended(self) -> None:
        for evaluation_id, evaluation in list(self._running.items()):
            if evaluation.wait(0):
                try:
                    self._ended[evaluation_id] = {"state": "done", "result": evaluation.outcome().to_json()}
                except EvaluationError as error:
                    logger.warning("%s", error)
                    self._ended[evaluation_id] = {"state": "failed", "error": str(error)}
                finally:
                    evaluation.stop()
                    del self._running[evaluation_id]
                while len(self._ended) > MAX_ENDED:
                    del self._ended[next(iter(self._ended))]

    def _allowed_checkpoint(self, path: Any, uri: Any) -> Path:
        for candidate in _paths(path, uri):
            # The same response whether the path is outside the root, missing or invalid, so that it reveals nothing.
            with suppress(OSError, ValueError, RuntimeError):  # RuntimeError for a loop of symbolic links
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
            "no such checkpoint in the server's root folder: give a path or a file:// URI in it",
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line, not a traceback, when a caller disconnects in the middle of a call."""
        del request
        error = sys.exception()
        logger.info("%s got no response: %s: %s", client_address[0], type(error).__name__, redact_text(str(error)))

    def close(self) -> None:
        """Stop listening, and stop the running evaluation."""
        self.server_close()
        with self._lock:
            for evaluation in self._running.values():
                evaluation.stop()
            self._running.clear()


class _Handler(BaseHTTPRequestHandler):
    server: EvaluationServer
    timeout = 30  # seconds without data from the caller
    default_request_version = "HTTP/1.0"  # so that a call without a version still gets a response with a status
    server_version = "hookline"
    sys_version = ""

    def do_POST(self) -> None:
        self._answer(HTTPStatus.ACCEPTED, self._begin)

    def do_GET(self) -> None:
        self._answer(HTTPStatus.OK, self._get_state)

    def _begin(self) -> dict[str, Any]:
        if self.path != "/evaluations":
            raise RefusedError(HTTPStatus.NOT_FOUND, "evaluations are posted to /evaluations")
        # Protects against CSRF: a web page in a local browser cannot send this type without a preflight request.
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
        length = self.headers.get("Content-Length", "")
        # The digits are counted first, since Python refuses to convert thousands of them.
        if not length.isdecimal() or len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must have a length of up to {MAX_BODY}")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is shorter than its Content-Length")
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
        return self.server.begin(body)

    def _get_state(self) -> dict[str, Any]:
        folder, _, evaluation_id = self.path.rpartition("/")
        if folder != "/evaluations":
            raise RefusedError(HTTPStatus.NOT_FOUND, "not found: use /evaluations/ID")
        return self.server.state_of(evaluation_id)

    def _answer(self, status: HTTPStatus, act: Callable[[], dict[str, Any]]) -> None:
        try:
            self._check_caller()
            content = act()
        except RefusedError as refused:
            status, content = refused.status, {"error": str(refused)}
        except (ConnectionError, TimeoutError):
            raise  # the caller is gone
        except Exception as error:
            logger.error("%s", describe_error(error))
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the server failed to handle the call"}
        self._send(status, content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond in JSON also to calls that the standard library refuses, such as unknown methods."""
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
            self.send_header("Connection", "close")  # since the rest of the body is not read
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _check_caller(self) -> None:
        token = self.server.token
        if token is None:
            # Protects against DNS rebinding: a web page can resolve its own host name to this machine.
            try:
                host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            except ValueError:  # an invalid IPv6 address
                host = ""
            if not _is_loopback(host):
                raise RefusedError(HTTPStatus.FORBIDDEN, "this server has no token and serves its own machine only")
            return
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode()):
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.debug("%s %s", self.address_string(), redact_text(format % arguments))


def _paths(path: Any, uri: Any) -> Iterator[Path]:
    """The paths that a call gives for its checkpoint."""
    if isinstance(path, str) and path:
        yield Path(path)
    with suppress(ValueError):  # an invalid IPv6 address
        if isinstance(uri, str) and urlsplit(uri).scheme == "file":
            yield Path(unquote(urlsplit(uri).path))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
