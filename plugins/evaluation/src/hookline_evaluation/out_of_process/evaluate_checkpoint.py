"""Evaluates a checkpoint in this process: rebuilds the run's trainer, loads the policy and emits `evaluate_policy`."""

from __future__ import annotations

from pathlib import Path

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.checkpoints import policy_files, run_of
from hookline_evaluation.out_of_process.jobs import EvaluationOutcome
from hookline_hookspecs import EvaluationRequest

__all__ = ["evaluate_checkpoint"]


def evaluate_checkpoint(checkpoint: Path, request: EvaluationRequest) -> EvaluationOutcome:
    """Evaluate the policy in a checkpoint's folder, with the run's lessons and the installed plugins."""
    # Read first, since the imports take seconds, and the run may delete the checkpoint meanwhile.
    try:
        files = {file: file.read_bytes() for file in policy_files(checkpoint)}
    except OSError as error:
        raise EvaluationError(f"{error.filename} cannot be read: {error.strerror}") from error
    import safetensors.torch  # after the trainer, whose error says how to install torch

    from hookline.training import evaluate_run

    arrays = {}
    for file, data in files.items():
        try:
            arrays.update(safetensors.torch.load(data))
        except safetensors.SafetensorError as error:
            raise EvaluationError(f"{file} is damaged: {error}") from error
    result = evaluate_run(run_of(checkpoint), arrays, request)
    if result is None:
        raise EvaluationError(
            f"{checkpoint} cannot be evaluated: its run has no rollouts, and no plugin returned scores"
        )
    return EvaluationOutcome.of(result)
