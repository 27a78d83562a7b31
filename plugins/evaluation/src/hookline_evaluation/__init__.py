"""Evaluates the policy at its schedule and at the end of the run."""

from hookline_evaluation.plugin import Evaluation, Options

__all__ = ["Evaluation", "Options"]
