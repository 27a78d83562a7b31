"""The evaluation of a checkpoint, here and now: the run's trainer is built again, and asked as a run would ask it."""

from __future__ import annotations

from pathlib import Path

from hookline_evaluation.elsewhere.checkpoints import POLICY, run_of
from hookline_evaluation.elsewhere.messages import Answer
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs import EvaluationRequest

__all__ = ["evaluate_checkpoint"]


def evaluate_checkpoint(checkpoint: Path, request: EvaluationRequest) -> Answer:
    """Evaluate the policy in a checkpoint's folder, with the run's lessons and the installed plugins."""
    # First of all: what takes seconds to import may take longer than this checkpoint is kept.
    try:
        weights = (checkpoint / POLICY).read_bytes()
    except OSError as error:
        raise EvaluationError(f"{checkpoint / POLICY} cannot be read: {error.strerror}") from error
    import safetensors.torch  # after the trainer, which says how to get torch where there is none

    from hookline.training import evaluate_run

    try:
        arrays = safetensors.torch.load(weights)
    except safetensors.SafetensorError as error:
        raise EvaluationError(f"{checkpoint / POLICY} is damaged: {error}") from error
    result = evaluate_run(run_of(checkpoint), arrays, request)
    if result is None:
        raise EvaluationError(
            f"{checkpoint} cannot be evaluated: its run learns from a dataset, and no plugin gave scores"
        )
    return Answer.of(result)
