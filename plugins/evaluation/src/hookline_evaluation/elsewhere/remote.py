"""An evaluation by a server: the checkpoint's place and the request are posted, and the result is polled for."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from hookline_evaluation.elsewhere.messages import Answer, Ticket, request_to_json
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs import HooklineError
from hookline_hookspecs.redaction import redact_text

if TYPE_CHECKING:
    from hookline.http.client import HTTPClient

__all__ = ["TOKEN_VARIABLE", "RemoteEvaluation"]

TOKEN_VARIABLE = "HOOKLINE_EVALUATION_TOKEN"
POLL_SECONDS = 1.0
CALL_SECONDS = 10.0
"""How long a single call may take. The evaluation goes on between calls, however long it is."""


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
            what = str(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}"
            self._outcome = EvaluationError(
                f"the evaluation of {self._ticket.checkpoint} by {redact_text(self._url)} failed: {redact_text(what)}"
            )

    def _evaluate(self) -> Answer:
        from hookline.http.client import HTTPClient

        told = {
            "id": uuid.uuid4().hex,  # a call that is made again, since no reply came, begins nothing twice
            "path": str(self._ticket.checkpoint.resolve()),
            "uri": self._ticket.uri,
            "request": request_to_json(self._ticket.request),
        }
        with HTTPClient(self._url, TOKEN_VARIABLE) as client:
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

    def _call(self, client: HTTPClient, method: str, path: str, content: object = None) -> dict[str, Any]:
        """One call, made again with growing pauses for as long as the server is away or busy."""
        from hookline.http.requests import Backoff, RequestError, with_retries

        def call() -> Any:
            try:
                return client.request_json(method, path, content, seconds=min(CALL_SECONDS, self._seconds_left()))
            except RequestError:
                self._seconds_left()  # a call that was cut short by the end of the evaluation's time says so
                raise

        reply = with_retries(call, Backoff(0.2, 10.0), seconds=self._seconds_left(), stopped=self._stopped)
        if not isinstance(reply, dict):
            raise EvaluationError(f"{redact_text(self._url)} replied {str(reply)[:200]!r}, which is no object")
        return reply
