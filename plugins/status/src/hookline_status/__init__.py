"""Keeps the status of a run in a file that other systems can watch."""

from hookline_status.plugin import Options, Status

__all__ = ["Options", "Status"]
