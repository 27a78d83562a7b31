"""What a sink is, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

__all__ = ["DATABASE", "SAVED", "Report", "Run", "Sink", "SinkUnavailableError"]

DATABASE: Final = "stats.sqlite"
"""The file in a run's folder that holds all numbers of the run, whatever other sinks there are."""


SAVED: Final = "run/saved"
"""The row that a checkpoint has in the database."""


class SinkUnavailableError(Exception):
    """A sink cannot be used in this run, and trying again will not help: a package is missing, say."""


class Report(NamedTuple):
    """Numbers of one moment of the run."""

    step: int
    epoch: int | None
    """None for what was reported before any epoch."""
    numbers: Mapping[str, float]
    time: float
    """When it was recorded, in seconds since 1970."""


@dataclass(frozen=True)
class Run:
    """What a sink is told of the run it is opened for."""

    folder: Path
    run_id: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration, without its secrets."""
    shared: dict[str, Any] = field(default_factory=dict)
    """`state.shared["metrics"]`: what other plugins may find."""


class Sink(Protocol):
    """Takes reports to where they are kept."""

    def write(self, reports: Sequence[Report]) -> None:
        """Keep these reports, oldest first. Those of one step come in one call whenever that is possible."""

    def close(self) -> None:
        """There will be no more reports."""
