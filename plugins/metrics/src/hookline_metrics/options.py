"""What the user can say of the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """The options of the plugin. The database is always written."""

    progress: Literal["auto", "bar", "lines", "off"] = "auto"
    """How the run shows that it gets on: a bar on a terminal, else a line every few seconds."""
    report: bool = True
    """Leave `report.html` in the run's folder when it ends."""
    gradients_every: int = 500
    """Gradient steps between two looks at the gradients; 0 for none."""
    system_every: float = 10.0
    """Seconds between two looks at processor, memory, disk and GPU; 0 for none."""
    csv: bool = False
    """Write `metrics.csv` as well."""
    jsonl: bool = False
    """Write `metrics.jsonl` as well."""
    wandb: Literal["off", "online", "offline"] = "off"
    """Send the numbers to Weights & Biases, or keep them in `wandb/` in the run's folder for `wandb sync`."""
    wandb_project: str = "hookline"
    wandb_entity: str | None = None
    sinks: tuple[str, ...] = ()
    """Further sinks, each as `package.module:Class`; `hookline_metrics.sinks` says what one is."""

    def __post_init__(self) -> None:
        if self.gradients_every < 0:
            raise ValueError(f"gradients_every must be 0 or more, got {self.gradients_every}")
        if not self.system_every >= 0:
            raise ValueError(f"system_every must be 0 or more, got {self.system_every}")
        for sink in self.sinks:
            if not all(sink.partition(":")):
                raise ValueError(f"a sink is named as package.module:Class, got {sink!r}")
