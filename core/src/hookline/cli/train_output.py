"""What `hookline train` prints: the log, and the summary at the end of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from hookline_hookspecs.redaction import redact_text

if TYPE_CHECKING:
    from hookline.rollout import Curriculum
    from hookline.training import Trainer

__all__ = ["LogHandler", "print_outcome"]


def print_outcome(trainer: Trainer, folder: Path, console: Console) -> None:
    state = trainer.state
    of_all = f" of {state.total_epochs}" if state.epoch + 1 != state.total_epochs else ""
    console.print(f"[bold]{escape(state.run_id)}[/]: {state.epoch + 1}{of_all} epochs, {state.step:,} gradient steps")
    if state.stop_reason is not None:
        console.print(f"ended early: {escape(redact_text(state.stop_reason))}")
    if trainer.worker is not None:
        if trainer.worker.is_complete:
            console.print("complete: all lessons have graduated")
        console.print(_lessons(trainer.worker.curriculum, state.eval_scores))
    console.print(f"files    {escape(str(folder))}", soft_wrap=True)
    if (folder / "report.html").exists():
        console.print(f"report   {escape(str(folder / 'report.html'))}", soft_wrap=True)


def _lessons(curriculum: Curriculum, scores: Mapping[str, float]) -> Table:
    table = Table()
    table.add_column("lesson")
    table.add_column("state")
    for heading in ("success in training", "success in evaluation", "mean reward"):
        table.add_column(heading, justify="right")
    for name, standing in curriculum.standings.items():
        success, reward = (scores.get(f"eval/{name}/{score}") for score in ("success_rate", "mean_reward"))
        table.add_row(
            escape(name),
            "graduated" if standing.graduated else "in training" if standing.unlocked else "locked",
            "-" if standing.success is None else f"{standing.success:.0%}",
            "-" if success is None else f"{success:.0%}",
            "-" if reward is None else f"{reward:.4g}",
        )
    return table


class LogHandler(RichHandler):
    """Redacts log records: some libraries log the URLs that they call, with secrets in them."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))
