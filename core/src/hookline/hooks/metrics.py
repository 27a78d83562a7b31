"""`MetricsHook`: numbers of your own, or those of the latest rollout, to the worker's tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline.hooks.periodic import PeriodicHook
from hookline_hookspecs import HookContext

__all__ = ["MetricsHook"]


class MetricsHook(PeriodicHook):
    """Logs what `metrics_fn(context)` returns.

    :param metrics_fn: None for the numbers among the context's metadata.
    """

    def __init__(
        self,
        frequency: int = 100,
        metrics_fn: Callable[[HookContext], Mapping[str, Any]] | None = None,
        start_step: int = 0,
    ) -> None:
        super().__init__(frequency, start_step)
        self.metrics_fn = metrics_fn or _numbers

    def run(self, context: HookContext) -> dict[str, Any]:
        metrics = dict(self.metrics_fn(context))
        context.worker.tracker.log(metrics, step=context.step)
        return metrics


def _numbers(context: HookContext) -> dict[str, float]:
    return {f"worker/{name}": v for name, v in context.metadata.items() if isinstance(v, (int, float))}
