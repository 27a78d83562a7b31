"""Writes to a wandb run.

If the server cannot be reached or there is no API key, the run is kept offline in `wandb/` in its folder, and
`wandb sync` sends it later. wandb's own collection of command lines, git state, host names and console output is off,
since these may contain secrets. Its system metrics are off, since the metrics plugin has its own.

A call of `wandb.log` holds the GIL for about a tenth of a millisecond. So of more than eight reports a second,
neighbouring ones are sent as one, with the last value of each metric. The database has them all.

Checkpoints are uploaded by the checkpoint plugin, which announces the address of each.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

import wandb

from hookline_hookspecs import ReplayRecord
from hookline_hookspecs.errors import describe_error, error_message
from hookline_hookspecs.sinks import Report, Run, Samples, Sink, SinkUnavailableError, join_reports
from hookline_wandb.plugin import Options

__all__ = ["WandbSink", "open_wandb"]

logger = logging.getLogger("hookline.wandb")

CONNECT_SECONDS: Final = 3.0
START_SECONDS: Final = 10.0
FINISH_SECONDS: Final = 15.0
LOGS_PER_SECOND: Final = 8
"""At most so many calls of `wandb.log` for each second of the run."""


class WandbSink(Sink):
    """Sends what a run records to a live wandb run, and finishes it when the sink is closed."""

    def __init__(self, live: Any, run_id: str) -> None:
        self._live = live
        self._run_id = run_id

    def write(self, reports: Sequence[Report]) -> None:
        for report in join_reports(reports, LOGS_PER_SECOND):
            if report.numbers:
                self._live.log(report.numbers, step=report.step)

    def write_samples(self, samples: Samples) -> None:
        rows = [[samples.step, own.markdown, own.reward, own.verdict] for own in samples.episodes]
        table = wandb.Table(columns=["step", "conversation", "reward", "verdict"], data=rows)
        # With the next report, since wandb drops what is of an earlier step than the latest.
        self._live.log({f"samples/{samples.lesson or 'rollout'}": table}, commit=False)

    def write_replay(self, replay: ReplayRecord) -> None:
        if replay.path is None:
            return
        # An artifact name may have letters, digits, dots, dashes and underscores.
        name = "replays-" + re.sub(r"[^\w.-]", "-", self._run_id or self._live.id, flags=re.ASCII)
        artifact = wandb.Artifact(name, type="replay", metadata={"step": replay.step, "episodes": replay.episodes})
        for path in (replay.path, replay.path.with_suffix(".html")):
            artifact.add_file(str(path), name=path.name)
        self._live.log_artifact(artifact, aliases=["latest", replay.path.stem])

    def close(self) -> None:
        self._live.finish()


def open_wandb(run: Run, options: Options) -> WandbSink:
    """Start a wandb run, and put it in `state.shared["metrics"]["wandb_run"]`."""
    wandb.setup(wandb.Settings(silent=True))
    try:
        live = _start_online(run, options) if options.mode == "online" else None
        if live is None:
            live = _start(run, options, "offline")
    except Exception as error:
        raise SinkUnavailableError(f"wandb cannot be started: {describe_error(error)}") from error
    run.shared["wandb_run"] = live
    return WandbSink(live, run.run_id)


def _start_online(run: Run, options: Options) -> Any | None:
    # Without a key, wandb would ask for one on the terminal and wait.
    if not wandb.api.api_key:
        logger.warning("wandb has no API key: the run is kept offline. Run `wandb login`, then `wandb sync`")
        return None
    problem = _connection_problem(wandb.setup().settings.base_url)
    if problem is not None:
        logger.warning("wandb cannot be reached, the run is kept offline: %s", problem)
        return None
    try:
        return _start(run, options, "online")
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


def _start(run: Run, options: Options, mode: Literal["online", "offline"]) -> Any:
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
    # An offline run cannot be continued: `wandb sync` would send the second part in place of the first.
    earlier = run.earlier_id("wandb") if mode == "online" else None
    live = wandb.init(
        id=earlier,
        resume="allow" if earlier else None,
        project=options.project,
        entity=options.entity,
        name=run.run_id or None,
        group=run.run_id or None,  # what was kept offline is a new run to wandb, so they share a group
        dir=str(run.folder),
        mode=mode,
        config=dict(run.config),
        settings=settings,
    )
    if mode == "online":
        run.keep_id("wandb", live.id)
    return live
