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
    from hookline.plugin_manager.discovery import open_plugins
    from hookline.plugin_manager.manager import Overrides
    from hookline.training.policy_evaluator import NAME, PolicyEvaluator
    from hookline.training.run import rebuild_trainer

    # Lessons, environments and tasks may be a plugin's, and so may the answer.
    with open_plugins() as plugins:
        trainer = rebuild_trainer(run_of(checkpoint), plugins)
        import safetensors.torch  # after the trainer, which says how to get torch where there is none

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
            f"{checkpoint} cannot be evaluated: its run learns from a dataset, and no plugin gave scores"
        )
    return Answer.of(result)
