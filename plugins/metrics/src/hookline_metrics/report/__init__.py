"""The HTML report of a run: curves, lessons, time, load and config in one self-contained file."""

from hookline_metrics.report.page import write_report

__all__ = ["write_report"]
