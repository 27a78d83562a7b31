"""Evaluates the policy at its schedule and at the end of the run.

`EvaluationHook` and what goes with it are imported when they are asked for: they need Hookline's trainer, and the
plugin needs nothing but the events.
"""

from typing import TYPE_CHECKING, Any

from hookline_evaluation.options import Options
from hookline_evaluation.plugin import Evaluation

if TYPE_CHECKING:
    from hookline_evaluation.hook import EvalRewardSummary, EvaluationConfig, EvaluationHook

__all__ = ["EvalRewardSummary", "Evaluation", "EvaluationConfig", "EvaluationHook", "Options"]


def __getattr__(name: str) -> Any:
    if name in ("EvalRewardSummary", "EvaluationConfig", "EvaluationHook"):
        from hookline_evaluation import hook

        return getattr(hook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
