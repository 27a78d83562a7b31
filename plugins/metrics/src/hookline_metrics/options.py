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
    steps: Literal["auto", "all"] = "auto"
    """Which reports are written. `all` writes each, however large the database grows. `auto` writes the first 20,000
    numbers, and while more than 100 a second come after them, the mean, extremes and count of each metric in a second.
    """
    gradients_every: int = 500
    """Gradient steps between two measurements of gradient norms and variances; 0 for none."""
    system_every: float = 10.0
    """Seconds between two measurements of CPU, memory, disk and GPU; 0 for none."""
    episodes: int = 64
    """How many of the newest episodes to keep in `episodes.jsonl`, to read; 0 for none."""
    csv: bool = False
    """Write `metrics.csv` as well."""
    jsonl: bool = False
    """Write `metrics.jsonl` as well."""
    samples: int = 4
    """Episodes of text that trackers are given of a rollout, at most every ten seconds; 0 for none."""

    def __post_init__(self) -> None:
        if self.gradients_every < 0:
            raise ValueError(f"gradients_every must be 0 or more, got {self.gradients_every}")
        if not self.system_every >= 0:
            raise ValueError(f"system_every must be 0 or more, got {self.system_every}")
        if self.samples < 0:
            raise ValueError(f"samples must be 0 or more, got {self.samples}")
        if self.episodes < 0:
            raise ValueError(f"episodes must be 0 or more, got {self.episodes}")
