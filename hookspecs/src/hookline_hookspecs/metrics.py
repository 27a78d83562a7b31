"""Events of metrics: plugins add theirs to a report, and every report is logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.sinks import Run, Sink
from hookline_hookspecs.state import TrainerState

__all__ = ["collect_metrics", "log_metrics", "register_sinks"]


@hookspec(kind="collect", scope="driver")
def register_sinks(run: Run) -> Mapping[str, Callable[[], Sink]] | None:
    """Add sinks, which store the run's metrics, samples and files elsewhere.

    A function is called on the thread of its sink. Import and start the tracker there, not in this event. One that
    raises is called again a second later, unless it raises `SinkUnavailableError` or `ImportError`.

    When: once, when a run that has a folder starts.
    Emitted by: metrics plugin.
    Where: rank 0, training thread.
    Args:
        run: the run's folder, id and config without secrets.
    Returns: functions that open a sink, by the sink's name; None for none. A name that two plugins give is used once.
    Added: 0.2.
    """


@hookspec(kind="collect", clock="step", scope="worker")
def collect_metrics(state: TrainerState) -> Mapping[str, float] | None:
    """Return the metrics of your plugin.

    When: each time metrics are collected for a report; in a rollout worker outside of the trainer, after each rollout.
    Emitted by: metrics plugin, rollout worker.
    Where: every worker process, rollout thread; of the trainer rank 0 alone, training thread.
    Args:
        state: the run; an empty state in a rollout worker.
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
