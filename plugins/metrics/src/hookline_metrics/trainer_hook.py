"""`MetricsHook`: the same numbers, for code that makes its wandb run, its stats client and its timer by hand.

    trainer.add_hook(MetricsHook(wandb_run, stats_client, timer, verbose=True))

The plugin needs none of this: where it is installed, every run has its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from hookline_hookspecs import TrainerState
from hookline_metrics.options import Options
from hookline_metrics.plugin import Metrics
from hookline_metrics.sinks.sink import Report, Sink
from hookline_metrics.sinks.wandb_run import WandbSink

__all__ = ["MetricsHook", "StatsClient", "Timer"]


class StatsClient(Protocol):
    """Keeps numbers somewhere, in a database of your own for instance. Called on a thread of its own."""

    def record(self, step: int, epoch: int | None, numbers: Mapping[str, float]) -> None:
        """Take one report."""


class Timer(Protocol):
    """Knows how long the parts of a program took."""

    def get_all_elapsed(self) -> Mapping[str, float]:
        """Seconds by name, since the timer was made."""


class MetricsHook(Metrics):
    """Sends every report to a wandb run and a stats client, shows progress, and touches the heartbeat.

    :param wandb_run: a run of wandb, or anything with `log(numbers, step=)`. It is fed, and not ended.
    :param timer: what it has measured is in the report of each epoch, as `timer/<name>`.
    :param verbose: show a progress bar, or lines where there is no terminal.
    """

    def __init__(
        self,
        wandb_run: Any | None = None,
        stats_client: StatsClient | None = None,
        timer: Timer | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(Options(progress="auto" if verbose else "off", report=False))
        self.wandb_run = wandb_run
        self.stats_client = stats_client
        self.timer = timer
        self.verbose = verbose

    def _sinks(self, state: TrainerState) -> list[tuple[str, Callable[[], Sink]]]:
        sinks: list[tuple[str, Callable[[], Sink]]] = []
        if self.wandb_run is not None:
            state.shared["metrics"]["wandb_run"] = self.wandb_run
            sinks.append(("wandb", partial(WandbSink, self.wandb_run, owns_run=False)))
        if self.stats_client is not None:
            sinks.append(("the stats client", partial(_StatsClientSink, self.stats_client)))
        return sinks

    def _own_numbers(self, state: TrainerState) -> dict[str, float]:
        elapsed = {} if self.timer is None else self.timer.get_all_elapsed()
        return super()._own_numbers(state) | {f"timer/{name}": seconds for name, seconds in elapsed.items()}


class _StatsClientSink:
    def __init__(self, client: StatsClient) -> None:
        self._client = client

    def write(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self._client.record(report.step, report.epoch, report.numbers)

    def close(self) -> None:
        """The client is its owner's."""
