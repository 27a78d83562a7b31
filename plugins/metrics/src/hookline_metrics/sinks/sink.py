"""The protocol of a sink, and the records that a sink is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["DATABASE", "SAVED", "Report", "Run", "Sink", "SinkUnavailableError"]

DATABASE: Final = "stats.sqlite"
"""The database in a run's folder. It has all metrics of the run, whatever other sinks there are."""

SAVED: Final = "run/saved"
"""The name of the row that is written for each checkpoint."""


class SinkUnavailableError(Exception):
    """A sink cannot be used in this run and should not be tried again, for example because a package is missing."""


class Report(NamedTuple):
    """Metrics that were recorded together."""

    step: int
    epoch: int | None
    """None before the first epoch."""
    numbers: Mapping[str, float]
    time: float
    """When it was recorded, in seconds since 1970."""


@dataclass(frozen=True)
class Run:
    """The run that a sink is opened for."""

    folder: Path
    run_id: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration, without its secrets."""
    shared: dict[str, Any] = field(default_factory=dict)
    """`state.shared["metrics"]`, which other plugins can read."""


class Sink(Protocol):
    """Stores reports."""

    def write(self, reports: Sequence[Report]) -> None:
        """Store these reports, oldest first. Reports of one step are passed in one call if possible."""

    def close(self) -> None:
        """Close the sink. There are no more reports."""
