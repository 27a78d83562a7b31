"""The plugin's own sinks, and `SinkWorker`, which writes to any sink on its own thread."""

from typing import Final

__all__ = ["DATABASE", "SAVED"]

DATABASE: Final = "stats.sqlite"
"""The database in a run's folder. It has all metrics of the run, whatever other sinks there are."""

SAVED: Final = "run/saved"
"""The name of the row that is written for each checkpoint."""
