"""One evaluation after another, of checkpoints as they are saved: at most one at a time, and none twice."""

from __future__ import annotations

import time
from collections.abc import Callable

from hookline_evaluation.elsewhere.messages import Answer, PendingEvaluation, Ticket
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs import CheckpointRecord, EvaluationRequest

__all__ = ["CheckpointEvaluations"]


class CheckpointEvaluations:
    """Begins the evaluation that is wanted as soon as there is a checkpoint, and nothing else goes on.

    :param begin: starts an evaluation elsewhere.
    """

    def __init__(self, begin: Callable[[Ticket], PendingEvaluation]) -> None:
        self._begin = begin
        self._wanted: EvaluationRequest | None = None
        self._latest: CheckpointRecord | None = None
        self._pending: tuple[Ticket, PendingEvaluation] | None = None
        self._evaluated_at: tuple[int, int] | None = None

    def want(self, request: EvaluationRequest) -> None:
        """Have the next checkpoint evaluated. What was wanted before and has not begun is not wanted any more."""
        self._wanted = request

    def take_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """A checkpoint has been saved."""
        if checkpoint.path is not None:
            self._latest = checkpoint

    def is_evaluated(self, epoch: int, step: int) -> bool:
        """Whether the checkpoint of this moment has been evaluated, or is being."""
        return self._evaluated_at == (epoch, step)

    def has_checkpoint_of(self, epoch: int, step: int) -> bool:
        return self._latest is not None and (self._latest.epoch, self._latest.step) == (epoch, step)

    def begin_if_wanted(self) -> Ticket | None:
        """Begin what is wanted, if it can; returns what was begun."""
        if self._wanted is None or self._latest is None or self._pending is not None:
            return None
        latest = self._latest
        assert latest.path is not None
        if self.is_evaluated(latest.epoch, latest.step):
            return None  # a newer one is to come
        ticket = Ticket(latest.path, latest.epoch, latest.step, latest.uri, self._wanted)
        self._wanted = None
        self._evaluated_at = ticket.epoch, ticket.step
        self._pending = ticket, self._begin(ticket)
        return ticket

    def collect(self, seconds: float = 0.0) -> tuple[Ticket, Answer] | None:
        """What has been evaluated, waiting for it at most so long; raises `EvaluationError` when it failed."""
        if self._pending is None:
            return None
        ticket, pending = self._pending
        if not pending.wait(seconds):
            return None
        self._pending = None
        try:
            return ticket, pending.answer()
        finally:
            pending.stop()

    def finish(self, deadline: float) -> tuple[Ticket, Answer] | None:
        """What is being evaluated, waiting for it until `time.monotonic()` is `deadline`; what goes on is ended."""
        collected = self.collect(max(0.0, deadline - time.monotonic()))
        if collected is None and self._pending is not None:
            ticket, _ = self._pending
            self.stop()
            raise EvaluationError(
                f"the evaluation of {ticket.checkpoint} was not done by the end of the run and was ended; "
                "give it longer by the option evaluation.deadline_seconds"
            )
        return collected

    def stop(self) -> None:
        """End what is being evaluated, and want nothing more."""
        self._wanted = None
        if self._pending is not None:
            _, pending = self._pending
            self._pending = None
            pending.stop()
