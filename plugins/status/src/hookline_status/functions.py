"""Status reports as functions, for `hookline.launcher.main(custom_logger_fns=[...], hook_fns={...})`.

    logger = create_status_logger(endpoint="http://localhost:8080/status", component_name="Training Monitor")
    hooks = create_training_hooks(status_endpoint="http://localhost:8080/status", heartbeat_interval=10)
    main(custom_logger_fns=[logger], hook_fns=hooks)

All functions with the same endpoint share one `Delivery`, so that their messages stay in order. It is closed when the
process exits. There is no hook for a failure, so a training that started and did not end is reported as failed then.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline_hookspecs import Watch
from hookline_hookspecs.errors import describe_error
from hookline_status.endpoint import Endpoint
from hookline_status.heartbeat import Heartbeat
from hookline_status.messages import Kind, Reporter

if TYPE_CHECKING:
    from hookline_status.delivery import Delivery

__all__ = [
    "TAOStatusLogger",
    "close_deliveries",
    "create_status_logger",
    "create_training_hooks",
    "create_validation_hooks",
]

Hook = Callable[[Any, dict[str, Any]], None]
Logger = Callable[[dict[str, Any], int], None]

VALIDATION_HEARTBEAT_SECONDS: Final = 10.0

_deliveries: dict[tuple[Endpoint, Path | None], Delivery] = {}
_unfinished: dict[Reporter, None] = {}
_lock = threading.Lock()


def create_status_logger(
    endpoint: str,
    component_name: str = "hookline",
    *,
    spool_dir: str | Path | None = None,
    allow_link_local: bool = False,
) -> Logger:
    """A logger that sends each report to `endpoint`: `{component, step, timestamp, metrics}`.

    :param component_name: the sender's name in every message.
    :param spool_dir: a folder that keeps undelivered messages for the next start (default: a temporary one).
    :param allow_link_local: also send to link-local addresses and cloud metadata services.
    """
    reporter = _open_reporter(endpoint, component_name, spool_dir, allow_link_local)

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
    """Hooks that report the training to `status_endpoint`: `{component, phase, timestamp, data}`.

    :param heartbeat_interval: steps between two heartbeats (phase `training_heartbeat`).
    """
    if heartbeat_interval < 1:
        raise ValueError(f"heartbeat_interval must be at least 1 step, got {heartbeat_interval}")
    reporter = _open_reporter(status_endpoint, component_name, spool_dir, allow_link_local)
    return {} if reporter is None else _training_hooks(reporter, heartbeat_interval)


def create_validation_hooks(
    status_endpoint: str,
    *,
    component_name: str = "hookline",
    spool_dir: str | Path | None = None,
    allow_link_local: bool = False,
) -> dict[str, Hook]:
    """Hooks that report validations to `status_endpoint`, with heartbeats (`validation_heartbeat`) during each."""
    reporter = _open_reporter(status_endpoint, component_name, spool_dir, allow_link_local)
    return {} if reporter is None else _validation_hooks(reporter)


def _open_reporter(url: str, component: str, spool_dir: str | Path | None, allow_link_local: bool) -> Reporter | None:
    """A reporter on the shared delivery to this endpoint. None on all ranks but 0, so that a run reports once."""
    # Imported here so that listing plugins does not import SQLite and HTTP.
    from hookline_status.delivery import Delivery

    endpoint = Endpoint.of(url, allow_link_local=allow_link_local)
    if int(os.environ.get("RANK", "0")) != 0:
        return None
    key = endpoint, None if spool_dir is None else Path(spool_dir).absolute()
    with _lock:
        if not _deliveries:
            atexit.register(close_deliveries)
        if key not in _deliveries:
            _deliveries[key] = Delivery(*key)
        return Reporter(_deliveries[key], component)


def close_deliveries() -> None:
    """Report trainings that did not end as failed, deliver what is left, and close all deliveries."""
    from hookline_status.delivery import close_all

    atexit.unregister(close_deliveries)
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    message = "the process ended before the training did" if error is None else describe_error(error)
    with _lock:
        for reporter in _unfinished:
            reporter.event("on_training_failed", {"status": "FAILURE", "message": message}, Kind.TERMINAL)
        _unfinished.clear()
        _deliveries.clear()
    close_all()


def _training_hooks(reporter: Reporter, heartbeat_interval: int) -> dict[str, Hook]:
    beats = Watch(heartbeat_interval, seen=0)

    def pre_training(report_data: dict[str, Any]) -> None:
        beats.skip_to(report_data.get("start_step", 0))
        _unfinished[reporter] = None
        reporter.event("pre_training", {"status": "STARTED", **report_data})

    def pre_training_step(report_data: dict[str, Any]) -> None:
        reporter.recurring_event("pre_training_step", report_data)

    def post_training_step(report_data: dict[str, Any]) -> None:
        reporter.recurring_event("post_training_step", report_data)
        if beats.is_due(report_data.get("current_step", beats.seen + 1)):
            reporter.event("training_heartbeat", {"status": "RUNNING", **report_data}, Kind.HEARTBEAT)

    def post_training(report_data: dict[str, Any]) -> None:
        _unfinished.pop(reporter, None)
        reporter.event("post_training", {"status": "SUCCESS", **report_data}, Kind.TERMINAL)

    return {
        "pre_training_hook": _hook(pre_training),
        "pre_training_step_hook": _hook(pre_training_step),
        "post_training_step_hook": _hook(post_training_step),
        "post_training_hook": _hook(post_training),
    }


def _validation_hooks(reporter: Reporter) -> dict[str, Hook]:
    heartbeat = Heartbeat(reporter.component, VALIDATION_HEARTBEAT_SECONDS)
    reporter.delivery.add_heartbeat(heartbeat)

    def hook(phase: str, send: Callable[[str, Mapping[str, Any]], None]) -> Hook:
        def report(report_data: dict[str, Any]) -> None:
            heartbeat.mark_progress("validation", report_data)
            if phase == "post_validation":
                heartbeat.leave_phase()
            send(phase, report_data)

        return _hook(report)

    return {
        "pre_validation_hook": hook("pre_validation", reporter.event),
        "pre_per_step_validation_hook": hook("pre_validation_step", reporter.recurring_event),
        "post_per_step_validation_hook": hook("post_validation_step", reporter.recurring_event),
        "post_validation_hook": hook("post_validation", reporter.event),
    }


def _hook(report: Callable[[dict[str, Any]], None]) -> Hook:
    def call(worker: Any, report_data: dict[str, Any]) -> None:
        del worker  # messages need the report only
        report(report_data)

    call.__qualname__ = report.__qualname__
    return call


class TAOStatusLogger:
    """Reports an experiment to an endpoint. It has the logger and all hooks, under the experiment's name.

        tao = TAOStatusLogger(status_endpoint="http://tao-server/api/status", experiment_name="sft-experiment-001")
        main(custom_logger_fns=[tao.log_status], hook_fns=tao.get_hooks())

    The `data` of `pre_training`, heartbeats, `post_training` and failures has TAO's `status`: STARTED, RUNNING, SUCCESS
    or FAILURE. The plugin, not this class, writes `status.json`.
    """

    def __init__(
        self,
        status_endpoint: str,
        experiment_name: str,
        *,
        heartbeat_interval: int = 10,
        spool_dir: str | Path | None = None,
        allow_link_local: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            "component_name": experiment_name,
            "spool_dir": spool_dir,
            "allow_link_local": allow_link_local,
        }
        self.experiment_name = experiment_name
        self._log = create_status_logger(status_endpoint, **options)
        self._hooks = {
            **create_training_hooks(status_endpoint, heartbeat_interval, **options),
            **create_validation_hooks(status_endpoint, **options),
        }

    def log_status(self, report_data: dict[str, Any], step: int) -> None:
        """A logger for `custom_logger_fns`."""
        self._log(report_data, step)

    def get_hooks(self) -> dict[str, Hook]:
        """The hooks for `hook_fns`, by name."""
        return dict(self._hooks)
