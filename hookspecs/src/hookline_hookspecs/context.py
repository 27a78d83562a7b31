"""`HookContext`: the context that events of the rollout worker carry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["HookContext"]


@dataclass
class HookContext:
    """The context of an event of a rollout worker."""

    worker: Any = None
    """The worker that emits the event. Live."""
    step: int = 0
    """Rollouts made by this worker so far; the clock of the rollout events."""
    rng: Any = None
    """An rng key for this event only. Using it does not change any rollout."""
    lesson_id: str | None = None
    """The lesson being rolled out, None between lessons."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further values by name, such as the reward of the latest rollout."""

    def frozen(self) -> HookContext:
        """A copy for another thread."""
        return replace(self, metadata=dict(self.metadata))
