"""Sends the metrics of a run, and its config without secrets, to Weights & Biases.

wandb is imported and started on the sink's thread. If the server cannot be reached or there is no API key, the run is
kept offline in `wandb/` in its folder, and `wandb sync` sends it later. wandb's own collection of command lines, git
state, host names and console output is off, since these may contain secrets. Its system metrics are off, since this
plugin has its own.

A call of `wandb.log` holds the GIL for about a tenth of a millisecond. So if there are many reports in a short time,
neighbouring ones are sent as one, with the last value of each metric. The database has them all.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from hookline_hookspecs.errors import describe_error, error_message
from hookline_metrics.options import Options
from hookline_metrics.sinks.sink import Report, Run, SinkUnavailableError

__all__ = ["WandbSink", "open_wandb"]

logger = logging.getLogger("hookline.metrics")

CONNECT_SECONDS: Final = 3.0
START_SECONDS: Final = 10.0
FINISH_SECONDS: Final = 15.0
CALLS_PER_WRITE: Final = 4
"""At most so many calls of `wandb.log` for each call of `write`, which comes twice a second."""


class WandbSink:
    """Sends reports to a live wandb run.

    :param owns_run: finish the run when the sink is closed.
    """

    def __init__(self, run: Any, *, owns_run: bool) -> None:
        self._run = run
        self._owns_run = owns_run

    def write(self, reports: Sequence[Report]) -> None:
        size = math.ceil(len(reports) / CALLS_PER_WRITE)
        for start in range(0, len(reports), size):
            part = reports[start : start + size]
            numbers: dict[str, float] = {}
            for report in part:
                numbers.update(report.numbers)
            if numbers:
                self._run.log(numbers, step=part[-1].step)

    def close(self) -> None:
        if self._owns_run:
            self._run.finish()


def open_wandb(run: Run, options: Options) -> WandbSink:
    """Start a wandb run, and put it in `state.shared["metrics"]["wandb_run"]`."""
    try:
        import wandb
    except ImportError as error:
        raise SinkUnavailableError(
            f"wandb cannot be imported ({error}); pip install 'hookline-metrics[wandb]', or set wandb = \"off\""
        ) from error
    wandb.setup(wandb.Settings(silent=True))
    try:
        live = _start_online(wandb, run, options) if options.wandb == "online" else None
        if live is None:
            live = _start(wandb, run, options, "offline")
    except Exception as error:
        raise SinkUnavailableError(f"wandb cannot be started: {describe_error(error)}") from error
    run.shared["wandb_run"] = live
    return WandbSink(live, owns_run=True)


def _start_online(wandb: Any, run: Run, options: Options) -> Any | None:
    # Without a key, wandb would ask for one on the terminal and wait.
    if not wandb.api.api_key:
        logger.warning("wandb has no API key: the run is kept offline. Run `wandb login`, then `wandb sync`")
        return None
    problem = _connection_problem(wandb.setup().settings.base_url)
    if problem is not None:
        logger.warning("wandb cannot be reached, the run is kept offline: %s", problem)
        return None
    try:
        return _start(wandb, run, options, "online")
    except Exception as error:
        logger.warning("wandb cannot be reached, the run is kept offline: %s", error_message(error).partition("\n")[0])
        return None


def _connection_problem(address: str) -> str | None:
    """Why the server cannot be reached. None if it can.

    Checked first, since wandb itself would keep trying, even after the run has ended.
    """
    if getproxies():
        return None  # the proxy makes the connection, so a direct attempt says nothing
    url = urlsplit(address)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection((url.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return f"{url.hostname}: {error}"
    return None


def _start(wandb: Any, run: Run, options: Options, mode: str) -> Any:
    run.folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        init_timeout=START_SECONDS,
        finish_timeout=FINISH_SECONDS,
    )
    return wandb.init(
        project=options.wandb_project,
        entity=options.wandb_entity,
        name=run.run_id or None,
        group=run.run_id or None,  # each resume is a new run to wandb, so they share a group
        dir=str(run.folder),
        mode=mode,
        config=dict(run.config),
        settings=settings,
    )
