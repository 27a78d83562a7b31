"""Rollout engines generate the responses of text lessons. `engine.py` is the protocol. Each engine is one module."""

from hookline.rollout.engines.engine import EngineError, EngineFactory, EngineRequest, Generated, RolloutEngine

__all__ = ["EngineError", "EngineFactory", "EngineRequest", "Generated", "RolloutEngine"]
