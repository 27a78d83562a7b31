"""Writes the metrics, config, samples, replays and checkpoints of a run to MLflow, off the training thread."""

from hookline_mlflow.plugin import MLflow, Options

__all__ = ["MLflow", "Options"]
