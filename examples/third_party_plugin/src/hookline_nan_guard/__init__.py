"""Stops a run whose loss is not finite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hookline_hookspecs import TrainerState, hookimpl

__all__ = ["NanGuard", "Options"]


@dataclass
class Options:
    """The options in [tool.hookline.plugins.nan-guard]."""

    patience: int = 3


class NanGuard:
    """Fails the run after `patience` steps in a row whose metrics are not all finite."""

    critical = True

    def __init__(self, options: Options) -> None:
        self.patience = options.patience
        self.in_a_row = 0
        self.in_all = 0

    @hookimpl
    def post_training_step(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        bad = [name for name, value in report_data.items() if isinstance(value, float) and not math.isfinite(value)]
        self.in_a_row = self.in_a_row + 1 if bad else 0
        self.in_all += bool(bad)
        if self.in_a_row >= self.patience:
            raise FloatingPointError(
                f"{', '.join(bad)} not finite for {self.in_a_row} steps in a row, last at step {state.step}"
            )

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        return {"nan_guard/non_finite_steps": float(self.in_all)}

    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return {"in_a_row": self.in_a_row, "in_all": self.in_all}

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        own = saved.get("nan-guard", {})
        self.in_a_row, self.in_all = own.get("in_a_row", 0), own.get("in_all", 0)
