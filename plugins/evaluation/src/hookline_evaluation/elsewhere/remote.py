"""An evaluation by a server: the checkpoint's place and the request are posted, and the result is polled for."""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from hookline_evaluation.elsewhere.messages import Answer, Ticket, request_to_json
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs.redaction import redact_text

if TYPE_CHECKING:
    import httpx

__all__ = ["TOKEN_VARIABLE", "RemoteEvaluation", "token_from_environment"]

TOKEN_VARIABLE = "HOOKLINE_EVALUATION_TOKEN"
POLL_SECONDS = 1.0
CALL_SECONDS = 10.0
"""How long a single call may take. The evaluation goes on between calls, however long it is."""

TRY_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
"""The server is busy, or not well: it may take the call later."""


class RemoteEvaluation:
    """Started when made, on a thread of its own."""

    def __init__(self, ticket: Ticket, url: str, timeout_seconds: float, poll_seconds: float = POLL_SECONDS) -> None:
        self._ticket = ticket
        self._url = url.rstrip("/")
        self._timeout = timeout_seconds
        self._poll_seconds = poll_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._stopped = threading.Event()
        self._outcome: Answer | EvaluationError | None = None
        # A daemon: a server that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="hookline-remote-evaluation", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        if isinstance(self._outcome, Answer):
            return self._outcome
        raise self._outcome or EvaluationError(f"the evaluation of {self._ticket.checkpoint} was stopped")

    def stop(self) -> None:
        self._stopped.set()

    # -- on the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._outcome = self._evaluate()
        except EvaluationError as error:
            self._outcome = error
        except Exception as error:
            self._outcome = EvaluationError(
                f"the evaluation of {self._ticket.checkpoint} by {redact_text(self._url)} failed: "
                f"{type(error).__name__}: {redact_text(str(error))}"
            )

    def _evaluate(self) -> Answer:
        import httpx

        token = token_from_environment()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        told = {
            "id": uuid.uuid4().hex,  # a call that is made again, since no reply came, begins nothing twice
            "path": str(self._ticket.checkpoint.resolve()),
            "uri": self._ticket.uri,
            "request": request_to_json(self._ticket.request),
        }
        # Redirects are not followed: the token is for this server and no other.
        with httpx.Client(headers=headers, timeout=CALL_SECONDS, follow_redirects=False) as client:
            self._call(client, "POST", "/evaluations", told)
            while True:
                reply = self._call(client, "GET", f"/evaluations/{told['id']}")
                if reply.get("state") == "done":
                    return Answer.from_json(reply.get("result"))
                if reply.get("state") == "failed":
                    raise EvaluationError(
                        f"{redact_text(self._url)} could not evaluate {self._ticket.checkpoint}: {reply.get('error')}"
                    )
                if self._stopped.wait(min(self._poll_seconds, self._seconds_left())):
                    raise EvaluationError(f"the evaluation of {self._ticket.checkpoint} was stopped")

    def _seconds_left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise EvaluationError(
                f"{redact_text(self._url)} gave no result for {self._ticket.checkpoint} within {self._timeout:g} s"
            )
        return left

    def _call(self, client: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """One call, made again with growing pauses for as long as the server is away or busy."""
        import httpx
        from tenacity import (
            Retrying,
            retry_if_exception,
            stop_after_delay,
            stop_when_event_set,
            wait_random_exponential,
        )

        retrying = Retrying(
            retry=retry_if_exception(_is_passing),
            stop=stop_after_delay(self._seconds_left()) | stop_when_event_set(self._stopped),
            wait=wait_random_exponential(multiplier=0.2, max=10.0),
            sleep=self._pause,
            reraise=True,
        )

        def call() -> dict[str, Any]:
            reply = client.request(method, self._url + path, json=body)
            if not reply.is_success:
                raise httpx.HTTPStatusError(
                    f"status {reply.status_code}: {reply.text[:500]}", request=reply.request, response=reply
                )
            content = reply.json()
            if not isinstance(content, dict):
                raise EvaluationError(f"{redact_text(self._url)} replied {reply.text[:200]!r}, which is no object")
            return content

        return retrying(call)

    def _pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)


def token_from_environment() -> str | None:
    """The token that server and clients share. One with control characters would break out of its header."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise EvaluationError(f"{TOKEN_VARIABLE} has characters that no header can hold: use printable ASCII")
    return token


def _is_passing(error: BaseException) -> bool:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in TRY_AGAIN
    return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)
