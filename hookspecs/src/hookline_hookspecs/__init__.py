"""The events of a Hookline run, and what a plugin needs to implement them.

A plugin is a class (or a module) with functions named after events and marked with `hookimpl`:

    from hookline_hookspecs import TrainerState, hookimpl

    class Announce:
        @hookimpl(every=10)
        def on_epoch_end(self, state: TrainerState) -> None:
            print("epoch", state.epoch, state.loss_stats)

Hookline finds it by an entry point in its pyproject.toml:

    [project.entry-points.hookline]
    announce = "my_package:Announce"

The events are declared by phase, one module each: `run`, `training`, `rollout`, `validation`, `evaluation`,
`rewards`, `checkpoint`, `metrics` and `setup`. An implementation declares only the arguments that it needs.
"""

from typing import Final

from hookline_hookspecs import checkpoint, evaluation, metrics, rewards, rollout, run, setup, training, validation
from hookline_hookspecs.artifacts import (
    CheckpointRecord,
    EvalRewardSummary,
    EvaluationRequest,
    EvaluationResult,
    ReplayRecord,
)
from hookline_hookspecs.context import HookContext
from hookline_hookspecs.emit import Emit
from hookline_hookspecs.episodes import Episode, EpisodeBatch, Rollout, Turn, VerificationReport, VerificationResult
from hookline_hookspecs.errors import HooklineError
from hookline_hookspecs.logs import get_logger
from hookline_hookspecs.markers import PROJECT_NAME, Clock, Kind, Scope, hookimpl, hookspec
from hookline_hookspecs.schedules import At, Cycle, Every, Schedule, Watch
from hookline_hookspecs.state import LiveObjectError, Shared, TrainerState
from hookline_hookspecs.trainer_hook import TrainerHook

__version__: Final = "0.1.0"

PHASES: Final = (run, training, rollout, validation, evaluation, rewards, checkpoint, metrics, setup)
"""The hookspec modules, in the order of the docs."""

__all__ = [
    "PHASES",
    "PROJECT_NAME",
    "At",
    "CheckpointRecord",
    "Clock",
    "Cycle",
    "Emit",
    "Episode",
    "EpisodeBatch",
    "EvalRewardSummary",
    "EvaluationRequest",
    "EvaluationResult",
    "Every",
    "HookContext",
    "HooklineError",
    "Kind",
    "LiveObjectError",
    "ReplayRecord",
    "Rollout",
    "Schedule",
    "Scope",
    "Shared",
    "TrainerHook",
    "TrainerState",
    "Turn",
    "VerificationReport",
    "VerificationResult",
    "Watch",
    "checkpoint",
    "evaluation",
    "get_logger",
    "hookimpl",
    "hookspec",
    "metrics",
    "rewards",
    "rollout",
    "run",
    "setup",
    "training",
    "validation",
]
