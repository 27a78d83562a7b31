"""Where a trainer's rollouts come from: `RolloutSource`, our own sources, and the parts that others are made of."""

from hookline.rollout.sources.registry import build_source
from hookline.rollout.sources.source import RolloutSource, SourceFactory, SourceRequest

__all__ = ["RolloutSource", "SourceFactory", "SourceRequest", "build_source"]
