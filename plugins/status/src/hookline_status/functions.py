"""The status as functions, for `hookline.launcher.main(custom_logger_fns=[...], hook_fns={...})`.

    logger = create_status_logger(endpoint="http://localhost:8080/status", component_name="Training Monitor")
    hooks = create_training_hooks(status_endpoint="http://localhost:8080/status", heartbeat_interval=10)
    main(custom_logger_fns=[logger], hook_fns=hooks)

All functions with the same endpoint share one delivery, so that their messages stay in order. There is no hook for a
failure: a training that began and did not end is told as failed when the process exits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs import Watch
from hookline_status.deliveries import open_reporter, run_began, run_ended
from hookline_status.messages import Kind
from hookline_status.pulse import Pulse
from hookline_status.reporter import Reporter

__all__ = ["create_status_logger", "create_training_hooks", "create_validation_hooks"]

Hook = Callable[[Any, dict[str, Any]], None]
Logger = Callable[[dict[str, Any], int], None]

VALIDATION_HEARTBEAT_SECONDS: Final = 10.0


def create_status_logger(
    endpoint: str,
    component_name: str = "hookline",
    *,
    spool_dir: str | Path | None = None,
    allow_link_local: bool = False,
) -> Logger:
    """A logger that sends each report to `endpoint`: `{component, step, timestamp, metrics}`.

    :param component_name: names the sender in every message.
    :param spool_dir: a folder that keeps what could not be delivered for the next start (default: a temporary one).
    :param allow_link_local: also send to link-local addresses and cloud metadata services.
    """
    reporter = open_reporter(endpoint, component_name, spool_dir, allow_link_local)

    def log_status(report_data: dict[str, Any], step: int) -> None:
        if reporter is not None:
            reporter.status(report_data, step)

    return log_status


def create_training_hooks(
    status_endpoint: str,
    heartbeat_interval: int = 10,
    *,
    component_name: str = "hookline",
    spool_dir: str | Path | None = None,
    allow_link_local: bool = False,
) -> dict[str, Hook]:
    """Hooks that tell `status_endpoint` of the training: `{component, phase, timestamp, data}`.

    :param heartbeat_interval: steps between two heartbeats, whose phase is `training_heartbeat`.
    """
    if heartbeat_interval < 1:
        raise ValueError(f"heartbeat_interval must be at least 1 step, got {heartbeat_interval}")
    reporter = open_reporter(status_endpoint, component_name, spool_dir, allow_link_local)
    return {} if reporter is None else _training_hooks(reporter, heartbeat_interval)


def create_validation_hooks(
    status_endpoint: str,
    *,
    component_name: str = "hookline",
    spool_dir: str | Path | None = None,
    allow_link_local: bool = False,
) -> dict[str, Hook]:
    """Hooks that tell `status_endpoint` of validations, with heartbeats (`validation_heartbeat`) while one goes on."""
    reporter = open_reporter(status_endpoint, component_name, spool_dir, allow_link_local)
    return {} if reporter is None else _validation_hooks(reporter)


def _training_hooks(reporter: Reporter, heartbeat_interval: int) -> dict[str, Hook]:
    beats = Watch(heartbeat_interval, seen=0)

    def pre_training(report_data: dict[str, Any]) -> None:
        beats.skip_to(report_data.get("start_step", 0))
        run_began(reporter)
        reporter.event("pre_training", {"status": "STARTED", **report_data})

    def pre_training_step(report_data: dict[str, Any]) -> None:
        reporter.recurring_event("pre_training_step", report_data)

    def post_training_step(report_data: dict[str, Any]) -> None:
        reporter.recurring_event("post_training_step", report_data)
        if beats.is_due(report_data.get("current_step", beats.seen + 1)):
            reporter.event("training_heartbeat", {"status": "RUNNING", **report_data}, Kind.HEARTBEAT)

    def post_training(report_data: dict[str, Any]) -> None:
        run_ended(reporter)
        reporter.event("post_training", {"status": "SUCCESS", **report_data}, Kind.TERMINAL)

    return {
        "pre_training_hook": _hook(pre_training),
        "pre_training_step_hook": _hook(pre_training_step),
        "post_training_step_hook": _hook(post_training_step),
        "post_training_hook": _hook(post_training),
    }


def _validation_hooks(reporter: Reporter) -> dict[str, Hook]:
    pulse = Pulse(reporter.component, VALIDATION_HEARTBEAT_SECONDS)
    reporter.delivery.watch(pulse)

    def hook(phase: str, say: Callable[[str, Mapping[str, Any]], None]) -> Hook:
        def tell(report_data: dict[str, Any]) -> None:
            pulse.move("validation", report_data)
            if phase == "post_validation":
                pulse.leave()
            say(phase, report_data)

        return _hook(tell)

    return {
        "pre_validation_hook": hook("pre_validation", reporter.event),
        "pre_per_step_validation_hook": hook("pre_validation_step", reporter.recurring_event),
        "post_per_step_validation_hook": hook("post_validation_step", reporter.recurring_event),
        "post_validation_hook": hook("post_validation", reporter.event),
    }


def _hook(tell: Callable[[dict[str, Any]], None]) -> Hook:
    def call(worker: Any, report_data: dict[str, Any]) -> None:
        del worker  # a message is made of the report alone
        tell(report_data)

    call.__qualname__ = tell.__qualname__
    return call
