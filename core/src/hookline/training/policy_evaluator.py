"""The trainer's answer to `evaluate_policy`: its worker plays the lessons, with chances of the evaluation's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from hookline.rollout.rng import key_for
from hookline.rollout.scores import LessonScores, score_evaluation, success_rates
from hookline.training.errors import TrainingError
from hookline.training.resume_point import restore_generators, seed_generators, take_generators
from hookline.training.rollout_loop import RolloutLoop
from hookline_hookspecs import Episode, EvaluationRequest, EvaluationResult, hookimpl

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["NAME", "PolicyEvaluator"]


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
        import jax

        asked = _of_lessons(request, worker)
        _check(asked)
        key = key_for(jax.random.key(asked.seed), "evaluation")
        # Environments and checkers of others may draw from the global generators.
        generators = take_generators()
        try:
            seed_generators(asked.seed)
            evaluated = worker.evaluate_lessons(asked, key, self._trainer.policy.state_dict())
            played = {name: own.episodes for name, own in evaluated.items() if isinstance(own, LessonScores)}
            kept = {name: episodes[: asked.replays] for name, episodes in played.items()}
            self._verify(kept)
        finally:
            restore_generators(generators)
        given = {name: own for name, own in evaluated.items() if name not in played}
        return EvaluationResult(score_evaluation(asked, worker.curriculum.lessons, played, given), kept)

    def _verify(self, kept: Mapping[str, Sequence[Episode]]) -> None:
        """Where training has its episodes verified, have those verified that people will look at."""
        loop = self._trainer.loop
        if isinstance(loop, RolloutLoop) and loop.rewards is not None:
            for episodes in kept.values():
                loop.rewards.verify(episodes)

    @hookimpl
    def on_evaluation_end(self, scores: Mapping[str, float]) -> None:
        """The scores of a full evaluation, wherever it was made, may graduate lessons."""
        worker = self._trainer.worker
        if worker is not None and worker.curriculum.config.heeds_evaluations:
            rates = success_rates(scores, worker.curriculum.lessons)
            if rates:
                worker.heed_evaluation(rates)


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


NAME = "policy-evaluator"
"""What the trainer's evaluator goes by among plugins."""
