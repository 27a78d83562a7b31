"""Writes the metrics, config, samples and replays of a run as TensorBoard events, off the training thread."""

from hookline_tensorboard.plugin import Options, TensorBoard

__all__ = ["Options", "TensorBoard"]
