"""`MetricsHook`: records the same metrics to a wandb run, a stats client and a timer that the caller creates.

    trainer.add_hook(MetricsHook(wandb_run, stats_client, timer, verbose=True))

The plugin does not need it: where the plugin is installed, every run is recorded. A subclass may override
`on_rollout_end` or `on_epoch_end`. Only what it passes on to `super()` is reported. The end of the run is always
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from hookline_hookspecs import Emit, HookContext, HooklineError, Rollout, TrainerHook, TrainerState, hookimpl
from hookline_hookspecs.sinks import Report, Sink, join_reports
from hookline_metrics.options import Options
from hookline_metrics.plugin import Metrics

__all__ = ["MetricsHook", "StatsClient", "Timer"]

LOGS_PER_SECOND: Final = 8
"""A call of `wandb.log` holds the GIL for about a tenth of a millisecond, so neighbouring reports are logged as one."""


class StatsClient(Protocol):
    """Stores metrics, for example in your own database. Called on its own thread."""

    def record(self, step: int, epoch: int | None, numbers: Mapping[str, float]) -> None:
        """Store one report."""


class Timer(Protocol):
    """Measures how long parts of a program take."""

    def get_all_elapsed(self) -> Mapping[str, float]:
        """Seconds by name, since the timer was created."""


class MetricsHook(Metrics, TrainerHook):
    """Sends every report to a wandb run and a stats client, shows progress, and touches the heartbeat.

    :param wandb_run: a wandb run, or anything with `log(numbers, step=)`. The hook does not finish it.
    :param timer: its times are part of each epoch's report, as `timer/<name>`.
    :param verbose: show a progress bar, or lines if there is no terminal.
    """

    after = (*Metrics.after, "EvaluationHook", "CheckpointHook")

    def __init__(
        self,
        wandb_run: Any | None = None,
        stats_client: StatsClient | None = None,
        timer: Timer | None = None,
        verbose: bool = True,
    ) -> None:
        for name, value, method in (
            ("wandb_run", wandb_run, "log"),
            ("stats_client", stats_client, "record"),
            ("timer", timer, "get_all_elapsed"),
        ):
            if value is not None and not callable(getattr(value, method, None)):
                raise HooklineError(
                    f"MetricsHook: {name} {value!r} has no method {method}(...). Pass None to leave it out"
                )
        super().__init__(Options(progress="auto" if verbose else "off", report=False))
        self.wandb_run = wandb_run
        self.stats_client = stats_client
        self.timer = timer
        self.verbose = verbose
        self._rollout_stats: dict[str, Any] = {}

    def use_emit(self, emit: Emit) -> None:
        """Collect the metrics of other plugins through `emit`. A trainer calls this on every hook that has it."""
        self._emit = emit

    @hookimpl(scope="driver")
    def save_plugin_state(self, state: TrainerState) -> None:
        """Report nothing here, since `on_epoch_end` makes the epoch's report."""
        del state
        self._enter("checkpoint")

    @hookimpl(specname="on_rollout_end", scope="driver")
    def note_rollout(self, context: HookContext, rollout: Rollout) -> None:
        """Record the phase and the lesson of a rollout. `on_rollout_end` records its statistics."""
        super().on_rollout_end(context, rollout)

    def on_rollout_end(  # type: ignore[override]  # the signature of a TrainerHook
        self, rollout_stats: Mapping[str, Any], trainer_state: TrainerState
    ) -> None:
        """Add the statistics of a rollout to the epoch's report."""
        del trainer_state
        self._rollout_stats.update(rollout_stats)

    def on_epoch_end(  # type: ignore[override]  # see above
        self, losses_stats: Mapping[str, Any], experience: Any, policy: Any, optimizer: Any, trainer_state: TrainerState
    ) -> None:
        """Report the epoch: the given loss statistics, and the rollout statistics that `on_rollout_end` was given."""
        del experience, policy, optimizer
        # The state has the means over all rollouts of the epoch.
        own, self._rollout_stats = self._rollout_stats, {}
        rollouts = {name: trainer_state.rollout_stats.get(name, value) for name, value in own.items()}
        super().on_epoch_end(replace(trainer_state, loss_stats=dict(losses_stats), rollout_stats=rollouts))

    def _sinks(self, state: TrainerState) -> Mapping[str, Callable[[], Sink]]:
        sinks: dict[str, Callable[[], Sink]] = {}
        if self.wandb_run is not None:
            state.shared["metrics"]["wandb_run"] = self.wandb_run
            sinks["wandb"] = partial(_WandbRunSink, self.wandb_run)
        if self.stats_client is not None:
            sinks["the stats client"] = partial(_StatsClientSink, self.stats_client)
        return sinks

    def _own_numbers(self) -> Mapping[str, float]:
        elapsed = {} if self.timer is None else self.timer.get_all_elapsed()
        return {f"timer/{name}": seconds for name, seconds in elapsed.items()}


class _WandbRunSink(Sink):
    """Logs to the caller's run, and does not finish it."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, reports: Sequence[Report]) -> None:
        for report in join_reports(reports, LOGS_PER_SECOND):
            if report.numbers:
                self._run.log(report.numbers, step=report.step)


class _StatsClientSink(Sink):
    def __init__(self, client: StatsClient) -> None:
        self._client = client

    def write(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self._client.record(report.step, report.epoch, report.numbers)
