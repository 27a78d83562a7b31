"""The source `ray` and its options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from hookline.rollout.sources import PlayerConfig, PooledSource, PoolOptions, RolloutSource, SourceRequest, WorkerPool
from hookline_ray.connection import connect

__all__ = ["RayOptions", "build_ray"]

Amount = Annotated[float, Field(ge=0)]


@dataclass
class RayOptions(PoolOptions):
    """`rollout.source_options`. The amounts are those that Ray reserves for each worker."""

    num_cpus: Amount = 1.0
    """Not on a Ray that the run starts by itself."""
    num_gpus: Amount = 0.0
    """With 0, a worker sees no GPU."""
    resources: dict[str, Amount] = field(default_factory=dict)
    """Custom resources by name. Only nodes that have them get workers."""
    scheduling_strategy: Literal["DEFAULT", "SPREAD"] = "DEFAULT"
    """As Ray defines them: `SPREAD` puts workers on as many nodes as it can."""
    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """How often each worker may be replaced before the run fails. None for no limit."""


def build_ray(request: SourceRequest) -> RolloutSource:
    """Workers in Ray actors."""
    options = request.read_options(RayOptions)

    def make_pool(config: PlayerConfig) -> WorkerPool:
        is_own = connect()
        from hookline_ray.pool import RayPool  # imports Ray, which must not be before `connect`

        # On one machine a run has as many workers as it asks for.
        return RayPool(config, request.workers, replace(options, num_cpus=0.0) if is_own else options)

    return PooledSource(request, make_pool, options)
