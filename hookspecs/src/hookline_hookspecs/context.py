"""`HookContext`: what an event of the rollout worker knows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["HookContext"]


@dataclass
class HookContext:
    """One moment of a rollout worker."""

    worker: Any = None
    """The worker that emits the event. Live."""
    step: int = 0
    """Rollouts made by this worker since it began; the clock of the rollout events."""
    rng: Any = None
    """A random key for this moment alone. What an implementation draws from it changes no rollout."""
    lesson_id: str | None = None
    """The lesson being rolled out, None between lessons."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further facts by name, such as the reward of the latest rollout."""

    def frozen(self) -> HookContext:
        """A copy for another thread."""
        return replace(self, metadata=dict(self.metadata))
