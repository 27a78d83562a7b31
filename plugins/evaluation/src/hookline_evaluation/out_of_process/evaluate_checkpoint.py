"""Evaluates a checkpoint in this process: rebuilds the run's trainer, loads the policy and emits `evaluate_policy`."""

from __future__ import annotations

from pathlib import Path

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.checkpoints import POLICY, run_of
from hookline_evaluation.out_of_process.jobs import EvaluationOutcome
from hookline_hookspecs import EvaluationRequest

__all__ = ["evaluate_checkpoint"]


def evaluate_checkpoint(checkpoint: Path, request: EvaluationRequest) -> EvaluationOutcome:
    """Evaluate the policy in a checkpoint's folder, with the run's lessons and the installed plugins."""
    # Read first, since the imports take seconds, and the run may delete the checkpoint meanwhile.
    try:
        weights = (checkpoint / POLICY).read_bytes()
    except OSError as error:
        raise EvaluationError(f"{checkpoint / POLICY} cannot be read: {error.strerror}") from error
    from hookline.plugin_manager.discovery import open_plugins
    from hookline.plugin_manager.manager import Overrides
    from hookline.training.policy_evaluator import NAME, PolicyEvaluator
    from hookline.training.run import rebuild_trainer

    # Plugins may define the lessons, environments and tasks, and may implement `evaluate_policy`.
    with open_plugins() as plugins:
        trainer = rebuild_trainer(run_of(checkpoint), plugins)
        import safetensors.torch  # after the trainer, whose error says how to install torch

        try:
            trainer.policy.load_state_dict(safetensors.torch.load(weights))
        except (RuntimeError, safetensors.SafetensorError) as error:
            raise EvaluationError(f"{checkpoint / POLICY} does not fit the run's policy: {error}") from error
        plugins.register(PolicyEvaluator(trainer), NAME, overrides=Overrides(on_error="raise"))
        result = plugins.emit.evaluate_policy(state=trainer.state, request=request)
        if trainer.worker is not None:
            trainer.worker.close()
    if result is None:
        raise EvaluationError(
            f"{checkpoint} cannot be evaluated: its run has no rollouts, and no plugin returned scores"
        )
    return EvaluationOutcome.of(result)
