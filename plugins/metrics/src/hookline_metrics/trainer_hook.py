"""`MetricsHook`: the same numbers, for code that makes its wandb run, its stats client and its timer by hand.

    trainer.add_hook(MetricsHook(wandb_run, stats_client, timer, verbose=True))

The plugin needs none of this: where it is installed, every run has its numbers. A subclass may override
`on_rollout_end` or `on_epoch_end`: what it does not leave to `super()` is not reported. The end of the run always is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from hookline_hookspecs import Emit, HookContext, HooklineError, Rollout, TrainerHook, TrainerState, hookimpl
from hookline_metrics.gathering import Gatherer
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


class MetricsHook(Metrics, TrainerHook):
    """Sends every report to a wandb run and a stats client, shows progress, and touches the heartbeat.

    :param wandb_run: a run of wandb, or anything with `log(numbers, step=)`. It is fed, and not ended.
    :param timer: what it has measured is in the report of each epoch, as `timer/<name>`.
    :param verbose: show a progress bar, or lines where there is no terminal.
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
                raise HooklineError(f"MetricsHook: the {name} {value!r} has no method {method}(...); None is for none")
        super().__init__(Options(progress="auto" if verbose else "off", report=False))
        self.wandb_run = wandb_run
        self.stats_client = stats_client
        self.timer = timer
        self.verbose = verbose
        self._rollout_stats: dict[str, Any] = {}

    def use_emit(self, emit: Emit) -> None:
        """Ask other plugins for their numbers there. A trainer tells every hook that has this method."""
        self._gatherer = Gatherer(emit)

    @hookimpl(scope="driver")
    def save_plugin_state(self, state: TrainerState) -> None:
        """Report nothing yet: what the report of the epoch is, `on_epoch_end` says."""
        del state
        self._enter("checkpoint")

    @hookimpl(specname="on_rollout_end", scope="driver")
    def note_rollout(self, context: HookContext, rollout: Rollout) -> None:
        """Keep the phases and the lessons of a rollout; its statistics are `on_rollout_end`'s."""
        super().on_rollout_end(context, rollout)

    def on_rollout_end(  # type: ignore[override]  # the arguments of a trainer hook, found by name
        self, rollout_stats: Mapping[str, Any], trainer_state: TrainerState
    ) -> None:
        """Take the statistics of a rollout into the report of the epoch."""
        del trainer_state
        self._rollout_stats.update(rollout_stats)

    def on_epoch_end(  # type: ignore[override]  # see above
        self, losses_stats: Mapping[str, Any], experience: Any, policy: Any, optimizer: Any, trainer_state: TrainerState
    ) -> None:
        """Report the epoch: what it is given of losses, and what `on_rollout_end` was given of rollouts."""
        del experience, policy, optimizer
        # The state has the means over all rollouts of the epoch.
        own, self._rollout_stats = self._rollout_stats, {}
        rollouts = {name: trainer_state.rollout_stats.get(name, value) for name, value in own.items()}
        super().on_epoch_end(replace(trainer_state, loss_stats=dict(losses_stats), rollout_stats=rollouts))

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
