"""Arguments for every event, such as a small run would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hookline.plugins.events import Event
from hookline_hookspecs import (
    CheckpointRecord,
    Episode,
    EpisodeBatch,
    EvaluationRequest,
    HookContext,
    ReplayRecord,
    Rollout,
    TrainerState,
)

__all__ = ["sample_arguments"]

REPORTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pre_training": {"total_epochs": 2, "total_steps": 8, "start_epoch": 0, "start_step": 0},
    "pre_training_step": {"current_epoch": 0, "current_step": 3, "total_steps": 8},
    "post_training_step": {"current_epoch": 0, "current_step": 4, "total_steps": 8, "train/loss": 0.5},
    "post_training": {"final_epoch": 1, "final_step": 8, "total_steps": 8, "final_val_loss": 0.25},
    "pre_validation": {"current_epoch": 0, "is_last_step": False},
    "pre_validation_step": {"current_epoch": 0, "batch_index": 0},
    "post_validation_step": {"current_epoch": 0, "batch_index": 0, "val_score": 0.5},
    "post_validation": {"current_epoch": 0, "val_avg_loss": 0.5},
    "log_metrics": {"train/loss": 0.5},
}
"""`report_data` of each event that has it, with exactly the keys that the event promises."""


def sample_arguments(event: Event, run_dir: Path | None = None) -> dict[str, Any]:
    """Arguments for one emission of `event`. Those of events that Hookline does not declare are None."""
    episodes = [Episode(prompt="2 + 3 =", response="5", reference="5", reward=1.0), Episode("4 + 4 =", "9", "8", 0.0)]
    makers: dict[str, Callable[[], Any]] = {
        "accepted": lambda: episodes[:1],
        "batch": lambda: EpisodeBatch(episodes=episodes, lesson_id="addition"),
        "changes": lambda: {"addition": "unlocked"},
        "checkpoint": lambda: CheckpointRecord(path=run_dir and run_dir / "checkpoints" / "epoch-000000", step=4),
        "context": lambda: HookContext(step=4, lesson_id="addition"),
        "error": lambda: RuntimeError("a sample of an error"),
        "rejected": lambda: episodes[1:],
        "replay": lambda: ReplayRecord(path=run_dir and run_dir / "replays" / "sample.jsonl", episodes=2),
        "report_data": lambda: dict(REPORTS.get(event.name, {})),
        "request": EvaluationRequest,
        "rewards": lambda: [1.0, 0.0],
        "rollout": lambda: Rollout(lesson_id="addition", episodes=episodes, stats={"mean_reward": 0.5}),
        "saved": dict,
        "scores": lambda: {"eval/addition/success_rate": 0.5},
        "state": lambda: TrainerState(
            run_id="sample", run_dir=run_dir, step=4, total_epochs=2, total_steps=8, loss_stats={"train/loss": 0.5}
        ),
        "step": lambda: 4,
        "version": lambda: 1,
    }
    return {name: makers[name]() if name in makers else None for name in event.arguments}
