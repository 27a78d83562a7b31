"""`Emit`: how a plugin emits events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Emit"]


class Emit(Protocol):
    """Emits events by name: `emit.on_evaluation_end(state=state, scores=scores)`.

    A plugin that emits events has a constructor parameter `emit`. A hook that the user creates has a method
    `use_emit(emit)` instead, which `trainer.add_hook` calls.
    """

    def __getattr__(self, event: str, /) -> Callable[..., Any]: ...
