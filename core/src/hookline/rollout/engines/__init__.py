"""Rollout engines: what continues prompts for text lessons. `engine.py` is the protocol, each engine is one module."""

from hookline.rollout.engines.engine import Generated, RolloutEngine

__all__ = ["Generated", "RolloutEngine"]
