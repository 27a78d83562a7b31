"""`Contents`: the data of a checkpoint, before it is written and after it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Contents"]


@dataclass(frozen=True)
class Contents:
    """The state of a run at the end of an epoch."""

    run_id: str = ""
    epoch: int = 0
    """The last epoch that is complete."""
    step: int = 0
    agent_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """The evaluation scores of the run, by name."""
    config: dict[str, Any] = field(default_factory=dict)
    """The run's config, as JSON data."""
    policy: Any = None
    """Its `state_dict()`, None for a run without a policy."""
    optimizer: Any = None
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What plugins returned from `save_plugin_state`, by plugin name."""
