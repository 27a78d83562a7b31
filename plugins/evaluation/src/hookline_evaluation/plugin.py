"""The plugin: it says when the policy is evaluated and what becomes of the scores. Others carry the evaluation out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hookline_hookspecs import Emit, EvaluationRequest, TrainerState, hookimpl

__all__ = ["Evaluation", "Options"]

logger = logging.getLogger("hookline.evaluation")


@dataclass(frozen=True)
class Options:
    """What each evaluation asks for."""

    n_examples: int = 64
    """Examples or episodes for each lesson."""
    greedy: bool = True
    """Take the most likely action or token; false samples."""
    seed: int = 0
    """What an evaluation draws from, so that two runs are comparable."""
    kind: Literal["micro", "full"] = "full"
    """`micro` is a glance at the current lesson, `full` covers all lessons."""

    def __post_init__(self) -> None:
        if self.n_examples < 1:
            raise ValueError(f"n_examples must be at least 1, got {self.n_examples}")


class Evaluation:
    """Asks whichever plugin answers `evaluate_policy` for scores, and puts them into `state.eval_scores`."""

    def __init__(self, options: Options, emit: Emit) -> None:
        self.request = EvaluationRequest(
            kind=options.kind, n_examples=options.n_examples, greedy=options.greedy, seed=options.seed
        )
        self._emit = emit
        self._evaluated_at: tuple[int, int] | None = None
        self._has_said_that_nobody_answers = False

    @hookimpl(scope="driver")
    def on_new_training_run(self) -> None:
        self._evaluated_at = None

    @hookimpl(every=10, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self._evaluate(state)

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        # The last epoch may have been evaluated when it ended.
        if self._evaluated_at != (state.epoch, state.step):
            self._evaluate(state)

    def _evaluate(self, state: TrainerState) -> None:
        self._emit.on_evaluation_start(state=state, request=self.request)
        scores = self._emit.evaluate_policy(state=state, request=self.request)
        if scores is None:
            self._say_that_nobody_answers()
            return
        if not isinstance(scores, Mapping):
            raise TypeError(f"a plugin returned a {type(scores).__name__} from evaluate_policy, not scores by name")
        self._evaluated_at = state.epoch, state.step
        state.eval_scores.update(scores)
        self._emit.on_evaluation_end(state=state, scores=dict(scores))

    def _say_that_nobody_answers(self) -> None:
        if not self._has_said_that_nobody_answers:
            self._has_said_that_nobody_answers = True
            logger.warning(
                "the policy is not evaluated: no plugin gave scores in evaluate_policy. "
                "Install or register one that does, or disable the plugin 'evaluation'"
            )
