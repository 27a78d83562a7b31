"""Events of metrics: plugins add theirs to a report, and every report is logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = ["collect_metrics", "log_metrics"]


@hookspec(kind="collect", clock="step", scope="driver")
def collect_metrics(state: TrainerState) -> Mapping[str, float] | None:
    """Return the metrics of your plugin.

    When: each time metrics are collected for a report.
    Emitted by: metrics plugin.
    Where: rank 0, training thread.
    Args:
        state: the run.
    Returns: metrics by name, such as rewards/acceptance_rate; None for none.
    Added: 0.1.
    """


@hookspec(clock="step", scope="driver")
def log_metrics(report_data: dict[str, Any], step: int) -> None:
    """Metrics have been reported.

    When: once for each report: after a training step, after a validation.
    Emitted by: trainer.
    Where: rank 0, training thread.
    Args:
        report_data: the report's metrics by name.
        step: the gradient step they belong to.
    Returns: ignored.
    Added: 0.1.
    """
