"""Where a trainer's rollouts come from: `RolloutSource`, our own sources, and the parts that others are made of."""

from hookline.rollout.sources.pool import (
    Began,
    Failed,
    Finished,
    Lost,
    Outcome,
    Played,
    Player,
    PoolEvent,
    Ready,
    WorkerLostError,
    WorkerPool,
)
from hookline.rollout.sources.pooled import AheadOptions, PooledSource, PoolOptions
from hookline.rollout.sources.pooled_player import PlayerConfig
from hookline.rollout.sources.registry import build_source
from hookline.rollout.sources.source import RolloutSource, SourceFactory, SourceRequest
from hookline.rollout.sources.thread_pool import ThreadPool

__all__ = [
    "AheadOptions",
    "Began",
    "Failed",
    "Finished",
    "Lost",
    "Outcome",
    "Played",
    "Player",
    "PlayerConfig",
    "PoolEvent",
    "PoolOptions",
    "PooledSource",
    "Ready",
    "RolloutSource",
    "SourceFactory",
    "SourceRequest",
    "ThreadPool",
    "WorkerLostError",
    "WorkerPool",
    "build_source",
]
