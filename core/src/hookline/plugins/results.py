"""What a collect event gives back."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

__all__ = ["Collected"]


class Collected(list[Any]):
    """The results of an event, each with the plugin it came from.

    As a list it holds the results alone, in call order and equal to what pluggy gives. `items()` pairs each with
    its plugin's name.
    """

    __slots__ = ("sources",)

    def __init__(self, values: Iterable[Any] = (), sources: Iterable[str] = ()) -> None:
        super().__init__(values)
        self.sources = list(sources)

    def items(self) -> list[tuple[str, Any]]:
        """The plugin's name and the result, for each result."""
        return list(zip(self.sources, self, strict=True))

    def after_wrappers(self, values: Iterable[Any], wrapper: str) -> Collected:
        """The results as wrappers left them: those still there keep their source, new ones are the wrapper's."""
        sources: defaultdict[int, deque[str]] = defaultdict(deque)
        for source, value in self.items():
            sources[id(value)].append(source)
        kept = list(values)
        return Collected(kept, [sources[id(value)].popleft() if sources[id(value)] else wrapper for value in kept])
