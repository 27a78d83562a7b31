"""Every number of a run: in a database, in wandb, on the terminal, and in a report that a browser can show."""

from hookline_metrics.options import Options
from hookline_metrics.plugin import Metrics
from hookline_metrics.trainer_hook import MetricsHook

__all__ = ["Metrics", "MetricsHook", "Options"]
