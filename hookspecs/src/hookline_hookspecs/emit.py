"""How a plugin announces events of its own phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Emit"]


class Emit(Protocol):
    """Announces events by name: `emit.on_evaluation_end(state=state, scores=scores)`.

    A plugin that emits takes one in its constructor, as a parameter called `emit`. A hook whose constructor is its
    user's to call has a method `use_emit(emit)` instead, which `trainer.add_hook` calls.
    """

    def __getattr__(self, event: str, /) -> Callable[..., Any]: ...
