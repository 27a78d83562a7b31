"""Every number of a run, in an SQLite database that can be read while it is written."""

from hookline_metrics.plugin import Metrics

__all__ = ["Metrics"]
