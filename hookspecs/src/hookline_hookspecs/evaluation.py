"""Events of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from hookline_hookspecs.artifacts import EvaluationRequest, EvaluationResult, ReplayRecord
from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = ["evaluate_policy", "on_evaluation_end", "on_evaluation_start", "on_replay_saved"]


@hookspec(clock="epoch", scope="driver")
def on_evaluation_start(state: TrainerState, request: EvaluationRequest) -> None:
    """An evaluation is about to start.

    When: before `evaluate_policy`.
    Emitted by: evaluation plugin, rollout worker.
    Where: rank 0, training thread.
    Args:
        state: the run.
        request: what is to be evaluated, and how.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(kind="decide", scope="driver")
def evaluate_policy(state: TrainerState, request: EvaluationRequest) -> Mapping[str, float] | EvaluationResult | None:
    """Evaluate the policy.

    When: for each evaluation, between `on_evaluation_start` and `on_evaluation_end`.
    Emitted by: evaluation plugin.
    Where: rank 0, training thread.
    Args:
        state: the run; its policy is the one to evaluate.
        request: what is to be evaluated, and how.
    Returns: scores by name, or an `EvaluationResult` that has episodes as well; None leaves it to the next plugin.
    Added: 0.1.
    """


@hookspec(clock="epoch", scope="driver")
def on_evaluation_end(state: TrainerState, scores: Mapping[str, float]) -> None:
    """An evaluation has ended, with scores.

    When: after `evaluate_policy`, once the scores are in `state.eval_scores`.
    Emitted by: evaluation plugin, rollout worker.
    Where: rank 0, training thread.
    Args:
        state: the run.
        scores: this evaluation's scores by name; eval/epoch and eval/step are there if an earlier checkpoint was
            evaluated.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(scope="driver")
def on_replay_saved(state: TrainerState, replay: ReplayRecord) -> None:
    """Recorded episodes have been written to a replay.

    When: after the files are complete.
    Emitted by: evaluation plugin.
    Where: rank 0, training thread.
    Args:
        state: the run.
        replay: the path of the replay, and what is in it.
    Returns: ignored.
    Added: 0.1.
    """
