"""Weights & Biases: the numbers of a run, and its config without secrets.

wandb is imported and started on the sink's thread. Where the server cannot be reached, or no key is known, the run is
kept offline in `wandb/` in its folder, from where `wandb sync` sends it later. wandb's own collection of command lines,
git state, host names, console output and system load is turned off: there is no telling what secrets are in the first
ones, and of the last one we have our own.

A call of wandb costs the interpreter about a tenth of a millisecond, on whatever thread. So of many reports in a short
time those next to each other are sent as one, with the last value of each number; the database has them all.
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
"""Sixteen a second, by the pace at which a sink is written to."""


class WandbSink:
    """Feeds a live run.

    :param owns_run: end the run when the sink is closed.
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
    """Start a run, and tell other plugins of it."""
    try:
        import wandb
    except ImportError as error:
        raise SinkUnavailableError(
            f"it cannot be imported ({error}); pip install 'hookline-metrics[wandb]', or set wandb = \"off\""
        ) from error
    wandb.setup(wandb.Settings(silent=True))
    try:
        live = _start_online(wandb, run, options) if options.wandb == "online" else None
        if live is None:
            live = _start(wandb, run, options, "offline")
    except Exception as error:
        raise SinkUnavailableError(f"it cannot be started: {describe_error(error)}") from error
    run.shared["wandb_run"] = live
    return WandbSink(live, owns_run=True)


def _start_online(wandb: Any, run: Run, options: Options) -> Any | None:
    # Asked for a key on a terminal, wandb would wait for an answer.
    if not wandb.api.api_key:
        logger.warning("wandb knows no API key: the run is kept offline. `wandb login` once, then `wandb sync`")
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
    """Why there is no connection to a server; None when there is one.

    wandb itself would go on trying for as long as it may take to start, also after the run has ended.
    """
    if getproxies():
        return None  # the way to the server is not ours to know
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
        group=run.run_id or None,  # a resumed run is a run of its own to wandb, beside those it goes on from
        dir=str(run.folder),
        mode=mode,
        config=dict(run.config),
        settings=settings,
    )
