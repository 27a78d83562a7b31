"""`TAOStatusLogger`: the logger and the hooks in one object, as TAO's integrations have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookline_status.functions import Hook, create_status_logger, create_training_hooks, create_validation_hooks

__all__ = ["TAOStatusLogger"]


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
