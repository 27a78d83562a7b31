"""Sends the metrics, samples and replays of a run to Weights & Biases, off the training thread."""

from hookline_wandb.plugin import Options, Wandb

__all__ = ["Options", "Wandb"]
