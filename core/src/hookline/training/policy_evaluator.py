"""Policy evaluation: the trainer's implementation of `evaluate_policy`, and `evaluate_run` for a run's folder.

The rollout worker plays the lessons with a separate rng.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.plugin_manager import open_plugins
from hookline.plugin_manager.manager import Overrides
from hookline.training.errors import TrainingError
from hookline.training.resume_point import restore_generators, seed_generators, take_generators
from hookline.training.rollout_loop import RolloutLoop
from hookline_hookspecs import Episode, EvaluationRequest, EvaluationResult, hookimpl

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker
    from hookline.training.trainer import Trainer

__all__ = ["NAME", "PolicyEvaluator", "evaluate_run"]

NAME: Final = "policy-evaluator"
"""The plugin name of the trainer's evaluator."""


class PolicyEvaluator:
    """Evaluates the policy on the worker's lessons. Returns None for a trainer without a worker.

    All random numbers come from the request's seed, so two runs are evaluated on the same held-out problems. Training
    continues as if there had been no evaluation.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @hookimpl(trylast=True)
    def evaluate_policy(self, request: EvaluationRequest) -> EvaluationResult | None:
        worker = self._trainer.worker
        if worker is None:
            return None
        request = _with_lessons(request, worker)
        _check(request)
        # Users' environments and checkers may use the global rngs.
        generators = take_generators()
        try:
            seed_generators(request.seed)
            result = self._answer(worker, request)
            self._verify(result.episodes)
        finally:
            restore_generators(generators)
        return result

    def _answer(self, worker: RolloutWorker, request: EvaluationRequest) -> EvaluationResult:
        trainer = self._trainer
        weights = trainer.policy.state_dict()
        if not request.on_workers:
            return worker.answer_evaluation(request, weights)
        has_published = isinstance(trainer.loop, RolloutLoop) and trainer.loop.has_published
        return worker.answer_evaluation(request, None if has_published else weights, trainer.source)

    def _verify(self, kept: Mapping[str, Sequence[Episode]]) -> None:
        """Verify the kept episodes, if the training episodes are verified too."""
        rewards = None if self._trainer.worker is None else self._trainer.worker.rewards
        if rewards is not None:
            for episodes in kept.values():
                rewards.verify(episodes)

    @hookimpl
    def on_evaluation_end(self, scores: Mapping[str, float]) -> None:
        """Pass the scores of a full evaluation to the curriculum, where they may graduate lessons."""
        if self._trainer.worker is not None:
            self._trainer.worker.heed_evaluation(scores)


def _with_lessons(request: EvaluationRequest, worker: RolloutWorker) -> EvaluationRequest:
    """The request; a micro-evaluation without lessons gets the current lesson."""
    if request.kind == "full" or request.lessons:
        return request
    return replace(request, lessons=(worker.lesson_id or next(iter(worker.curriculum.lessons)),))


def _check(request: EvaluationRequest) -> None:
    if request.greedy and request.samples_per_problem > 1:
        raise TrainingError(
            f"an evaluation with greedy=True and {request.samples_per_problem} samples per problem would draw the same "
            "sample each time: use greedy=False, or one sample per problem"
        )
    invalid = [k for k in request.pass_at if not 1 <= k <= request.samples_per_problem]
    if invalid:
        raise TrainingError(
            f"pass@{invalid[0]} cannot be computed from {request.samples_per_problem} sample(s) per problem: "
            "k must be from 1 to the number of samples"
        )


def evaluate_run(run_dir: Path, weights: Mapping[str, Any], request: EvaluationRequest) -> EvaluationResult | None:
    """Evaluate a policy with the lessons of the run in `run_dir` and the installed plugins.

    :param weights: the policy's, as torch tensors by name.
    :returns: None if the run has no lessons and no plugin evaluates the policy.
    """
    from hookline.training.run import rebuild_trainer  # imports the trainer, which imports this module

    # A plugin may provide the task, the lessons, the environments or the evaluation itself.
    with open_plugins() as plugins:
        trainer = rebuild_trainer(run_dir, plugins)
        try:
            trainer.policy.load_state_dict(weights)
        except RuntimeError as error:
            raise TrainingError(f"these weights do not fit the policy of the run in {run_dir}: {error}") from error
        plugins.register(PolicyEvaluator(trainer), NAME, overrides=Overrides(on_error="raise"))
        result: EvaluationResult | None = plugins.emit.evaluate_policy(state=trainer.state, request=request)
        if trainer.worker is not None:
            trainer.worker.close()
    return result
