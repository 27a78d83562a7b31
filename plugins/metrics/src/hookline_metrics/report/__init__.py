"""A run as one HTML file that needs nothing else: curves, lessons, time, load, config."""

from hookline_metrics.report.page import write_report

__all__ = ["write_report"]
