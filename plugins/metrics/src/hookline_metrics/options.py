"""The options of the metrics plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Options of the plugin. The database `stats.sqlite` is always written."""

    progress: Literal["auto", "bar", "lines", "off"] = "auto"
    """How progress is shown. `auto` is a bar on a terminal and a line every ten seconds elsewhere."""
    report: bool = True
    """Write `report.html` to the run's folder when the run ends."""
    gradients_every: int = 500
    """Gradient steps between two measurements of gradient norms and variances; 0 for none."""
    system_every: float = 10.0
    """Seconds between two measurements of CPU, memory, disk and GPU; 0 for none."""
    csv: bool = False
    """Write `metrics.csv` as well."""
    jsonl: bool = False
    """Write `metrics.jsonl` as well."""
    wandb: Literal["off", "online", "offline"] = "off"
    """Send the metrics to Weights & Biases, or keep them in `wandb/` in the run's folder for `wandb sync`."""
    wandb_project: str = "hookline"
    wandb_entity: str | None = None
    sinks: tuple[str, ...] = ()
    """Further sinks, each as `package.module:Class`. `hookline_metrics.sinks` describes what a sink must have."""

    def __post_init__(self) -> None:
        if self.gradients_every < 0:
            raise ValueError(f"gradients_every must be 0 or more, got {self.gradients_every}")
        if not self.system_every >= 0:
            raise ValueError(f"system_every must be 0 or more, got {self.system_every}")
        for sink in self.sinks:
            if not all(sink.partition(":")):
                raise ValueError(f"a sink must be given as package.module:Class, got {sink!r}")
