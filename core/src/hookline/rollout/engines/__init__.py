"""Rollout engines generate the responses of text lessons. `engine.py` is the protocol. Each engine is one module."""

from hookline.rollout.engines.engine import Generated, RolloutEngine

__all__ = ["Generated", "RolloutEngine"]
