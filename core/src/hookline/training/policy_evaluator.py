"""The trainer's answer to `evaluate_policy`, and the evaluation of a policy with what a run's folder records.

The worker plays the lessons, with a rng of the evaluation's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from torch import nn

from hookline.plugin_manager import open_plugins
from hookline.plugin_manager.manager import Overrides
from hookline.training.errors import TrainingError
from hookline.training.resume_point import restore_generators, seed_generators, take_generators
from hookline.training.rollout_loop import RolloutLoop
from hookline_hookspecs import Episode, EvaluationRequest, EvaluationResult, hookimpl

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["NAME", "PolicyEvaluator", "evaluate_run"]

NAME: Final = "policy-evaluator"
"""What the trainer's evaluator goes by among plugins."""


class Evaluable(Protocol):
    """What is asked of a trainer."""

    policy: nn.Module

    @property
    def worker(self) -> RolloutWorker | None: ...

    @property
    def loop(self) -> Any: ...


class PolicyEvaluator:
    """Plays the worker's lessons. A trainer without a worker has none to play, and leaves the answer to others.

    Whatever is drawn comes from the request's seed: two runs meet the same problems, which are not those that they
    were trained on, and training goes on as if there had been no evaluation.
    """

    def __init__(self, trainer: Evaluable) -> None:
        self._trainer = trainer

    @hookimpl(trylast=True)
    def evaluate_policy(self, request: EvaluationRequest) -> EvaluationResult | None:
        worker = self._trainer.worker
        if worker is None:
            return None
        asked = _of_lessons(request, worker)
        _check(asked)
        # Environments and checkers of others may draw from the global generators.
        generators = take_generators()
        try:
            seed_generators(asked.seed)
            result = worker.answer_evaluation(asked, self._trainer.policy.state_dict())
            self._verify(result.episodes)
        finally:
            restore_generators(generators)
        return result

    def _verify(self, kept: Mapping[str, Sequence[Episode]]) -> None:
        """Where training has its episodes verified, have those verified that people will look at."""
        loop = self._trainer.loop
        if isinstance(loop, RolloutLoop) and loop.rewards is not None:
            for episodes in kept.values():
                loop.rewards.verify(episodes)

    @hookimpl
    def on_evaluation_end(self, scores: Mapping[str, float]) -> None:
        """The scores of a full evaluation, wherever it was made, may graduate lessons."""
        if self._trainer.worker is not None:
            self._trainer.worker.heed_evaluation(scores)


def _of_lessons(request: EvaluationRequest, worker: RolloutWorker) -> EvaluationRequest:
    """The request with the lesson that a glance is to be taken at."""
    if request.kind == "full" or request.lessons:
        return request
    return replace(request, lessons=(worker.lesson_id or next(iter(worker.curriculum.lessons)),))


def _check(request: EvaluationRequest) -> None:
    if request.greedy and request.samples_per_problem > 1:
        raise TrainingError(
            f"an evaluation asks for {request.samples_per_problem} samples of each problem, and for the likeliest one "
            "each time: they would all be the same. Ask with greedy=False, or for one sample"
        )
    too_great = [k for k in request.pass_at if not 1 <= k <= request.samples_per_problem]
    if too_great:
        raise TrainingError(
            f"an evaluation asks for pass@{too_great[0]} with {request.samples_per_problem} sample(s) of each problem: "
            "it takes at least k samples, and a k of at least 1"
        )


def evaluate_run(run_dir: Path, weights: Mapping[str, Any], request: EvaluationRequest) -> EvaluationResult | None:
    """Evaluate a policy with the lessons of the run in `run_dir` and the installed plugins.

    :param weights: the policy's, as torch tensors by name.
    :returns: None for a run that has no lessons, where no plugin gives scores either.
    """
    from hookline.training.run import rebuild_trainer  # which makes a trainer, which has an evaluator

    # Lessons, environments and tasks may be a plugin's, and so may the answer.
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
