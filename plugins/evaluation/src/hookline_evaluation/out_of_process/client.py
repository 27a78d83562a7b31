"""Evaluates a checkpoint by a server: posts the checkpoint's path and the request, and polls for the result."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.jobs import EvaluationJob, EvaluationOutcome, request_to_json
from hookline_hookspecs import HooklineError
from hookline_hookspecs.redaction import redact_text

if TYPE_CHECKING:
    from hookline.http.client import HTTPClient

__all__ = ["TOKEN_VARIABLE", "RemoteEvaluation"]

TOKEN_VARIABLE = "HOOKLINE_EVALUATION_TOKEN"
POLL_SECONDS = 1.0
CALL_SECONDS = 10.0
"""How long a single HTTP call may take."""


class RemoteEvaluation:
    """Starts at once, on its own thread."""

    def __init__(
        self, job: EvaluationJob, url: str, timeout_seconds: float, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._job = job
        self._url = url.rstrip("/")
        self._timeout = timeout_seconds
        self._poll_seconds = poll_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._stopped = threading.Event()
        self._outcome: EvaluationOutcome | EvaluationError | None = None
        # A daemon thread, so that a server that hangs cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name="hookline-remote-evaluation", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def outcome(self) -> EvaluationOutcome:
        if isinstance(self._outcome, EvaluationOutcome):
            return self._outcome
        raise self._outcome or EvaluationError(f"the evaluation of {self._job.checkpoint} was stopped")

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
                f"the evaluation of {self._job.checkpoint} by {redact_text(self._url)} failed: {redact_text(what)}"
            )

    def _evaluate(self) -> EvaluationOutcome:
        from hookline.http.client import HTTPClient

        body = {
            "id": uuid.uuid4().hex,  # so that a repeated call does not start the evaluation twice
            "path": str(self._job.checkpoint.resolve()),
            "uri": self._job.uri,
            "request": request_to_json(self._job.request),
        }
        with HTTPClient(self._url, TOKEN_VARIABLE) as client:
            self._call(client, "POST", "/evaluations", body)
            while True:
                reply = self._call(client, "GET", f"/evaluations/{body['id']}")
                if reply.get("state") == "done":
                    return EvaluationOutcome.from_json(reply.get("result"))
                if reply.get("state") == "failed":
                    raise EvaluationError(
                        f"{redact_text(self._url)} could not evaluate {self._job.checkpoint}: {reply.get('error')}"
                    )
                if self._stopped.wait(min(self._poll_seconds, self._seconds_left())):
                    raise EvaluationError(f"the evaluation of {self._job.checkpoint} was stopped")

    def _seconds_left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise EvaluationError(
                f"{redact_text(self._url)} gave no result for {self._job.checkpoint} within {self._timeout:g} s"
            )
        return left

    def _call(self, client: HTTPClient, method: str, path: str, content: object = None) -> dict[str, Any]:
        """One call, repeated with growing pauses while the server is unreachable or busy."""
        from hookline.http.requests import Backoff, RequestError, with_retries

        def call() -> Any:
            try:
                return client.ask(method, path, content, seconds=min(CALL_SECONDS, self._seconds_left()))
            except RequestError:
                self._seconds_left()  # raises the evaluation's own timeout error, if that is why the call failed
                raise

        reply = with_retries(call, Backoff(0.2, 10.0), seconds=self._seconds_left(), stopped=self._stopped)
        if not isinstance(reply, dict):
            raise EvaluationError(f"{redact_text(self._url)} replied {str(reply)[:200]!r}, which is not an object")
        return reply
