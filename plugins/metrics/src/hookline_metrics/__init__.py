"""Records every metric of a run: in a SQLite database, in trackers, on the terminal and in an HTML report."""

from hookline_metrics.options import Options
from hookline_metrics.plugin import Metrics
from hookline_metrics.trainer_hook import MetricsHook

__all__ = ["Metrics", "MetricsHook", "Options"]
