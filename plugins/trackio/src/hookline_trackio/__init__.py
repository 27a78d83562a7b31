"""Writes the metrics, config, samples, replays and checkpoints of a run to trackio, off the training thread."""

from hookline_trackio.plugin import Options, Trackio

__all__ = ["Options", "Trackio"]
