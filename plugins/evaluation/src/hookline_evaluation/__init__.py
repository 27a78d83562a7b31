"""Evaluates the policy at intervals and at the end of the run."""

from hookline_evaluation.hook import EvaluationConfig, EvaluationHook
from hookline_evaluation.options import Options
from hookline_evaluation.plugin import Evaluation
from hookline_hookspecs import EvalRewardSummary

__all__ = ["EvalRewardSummary", "Evaluation", "EvaluationConfig", "EvaluationHook", "Options"]
