"""Evaluates checkpoints as they are saved: at most one at a time, and none twice."""

from __future__ import annotations

import time
from collections.abc import Callable

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.jobs import EvaluationJob, EvaluationOutcome, PendingEvaluation
from hookline_hookspecs import CheckpointRecord, EvaluationRequest

__all__ = ["CheckpointEvaluations"]


class CheckpointEvaluations:
    """Starts a requested evaluation as soon as there is a new checkpoint and no other evaluation is running.

    :param begin: starts an evaluation outside of this process.
    """

    def __init__(self, begin: Callable[[EvaluationJob], PendingEvaluation]) -> None:
        self._begin = begin
        self._requested: EvaluationRequest | None = None
        self._latest: CheckpointRecord | None = None
        self._pending: tuple[EvaluationJob, PendingEvaluation] | None = None
        self._evaluated_at: tuple[int, int] | None = None

    def request(self, request: EvaluationRequest) -> None:
        """Request an evaluation of the next checkpoint. Replaces an earlier request that has not started."""
        self._requested = request

    def add_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Add a checkpoint that has been saved."""
        if checkpoint.path is not None:
            self._latest = checkpoint

    def is_evaluated(self, epoch: int, step: int) -> bool:
        """Whether the checkpoint of this epoch and step has been evaluated or is being evaluated."""
        return self._evaluated_at == (epoch, step)

    def has_checkpoint_of(self, epoch: int, step: int) -> bool:
        return self._latest is not None and (self._latest.epoch, self._latest.step) == (epoch, step)

    def begin_next(self) -> EvaluationJob | None:
        """Start the requested evaluation if possible. Returns the job that was started."""
        if self._requested is None or self._latest is None or self._pending is not None:
            return None
        latest = self._latest
        assert latest.path is not None
        if self.is_evaluated(latest.epoch, latest.step):
            return None  # wait for a newer checkpoint
        job = EvaluationJob(latest.path, latest.epoch, latest.step, latest.uri, self._requested)
        self._requested = None
        self._evaluated_at = job.epoch, job.step
        self._pending = job, self._begin(job)
        return job

    def collect(self, seconds: float = 0.0) -> tuple[EvaluationJob, EvaluationOutcome] | None:
        """The outcome of the running evaluation, or None if it does not end within so many seconds.

        Raises `EvaluationError` if it failed.
        """
        if self._pending is None:
            return None
        job, pending = self._pending
        if not pending.wait(seconds):
            return None
        self._pending = None
        try:
            return job, pending.outcome()
        finally:
            pending.stop()

    def finish(self, deadline: float) -> tuple[EvaluationJob, EvaluationOutcome] | None:
        """The outcome of the running evaluation. It is stopped if it does not end before `deadline`."""
        collected = self.collect(max(0.0, deadline - time.monotonic()))
        if collected is None and self._pending is not None:
            job, _ = self._pending
            self.stop()
            raise EvaluationError(
                f"the evaluation of {job.checkpoint} did not finish by the end of the run and was stopped. "
                "The option evaluation.deadline_seconds gives it more time"
            )
        return collected

    def stop(self) -> None:
        """Stop the running evaluation and drop the request."""
        self._requested = None
        if self._pending is not None:
            _, pending = self._pending
            self._pending = None
            pending.stop()
