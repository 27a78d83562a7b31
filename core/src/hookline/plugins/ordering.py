"""The order of plugins: `after`, `before` and `requires`, on top of pluggy's own order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from hookline.plugins.errors import OrderError, PluginError

__all__ = ["Constraints", "constraints_of", "sort_by_constraints"]

T = TypeVar("T")


@dataclass(frozen=True)
class Constraints:
    """What one plugin says of its place among the others."""

    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


def constraints_of(plugin: object, name: str) -> Constraints:
    """Read `after`, `before` and `requires` off a plugin."""

    def names(attribute: str) -> tuple[str, ...]:
        value = getattr(plugin, attribute, ())
        if isinstance(value, str) or not isinstance(value, Iterable) or any(not isinstance(n, str) for n in value):
            raise PluginError(
                plugin,
                f"plugin {name!r}: {attribute} must be a tuple of plugin names, such as ('metrics',), not {value!r}",
            )
        return tuple(value)

    return Constraints(after=names("after"), before=names("before"), requires=names("requires"))


def sort_by_constraints(names: Sequence[str], constraints: Mapping[str, Constraints]) -> list[str]:
    """`names` with as little moved as the constraints allow; a name that is not there constrains nothing.

    The first name whose predecessors are all placed goes next, so equal inputs give equal orders.
    """
    present = set(names)
    predecessors: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in names:
        own = constraints.get(name, Constraints())
        for other in own.after:
            if other in present:
                predecessors[name][other] = f"{name!r} is after {other!r}"
        for other in own.before:
            if other in present:
                predecessors[other][name] = f"{name!r} is before {other!r}"
    ordered: list[str] = []
    waiting = list(names)
    while waiting:
        placed = set(ordered)
        for name in waiting:
            if predecessors[name].keys() <= placed:
                break
        else:
            raise _cycle_error(waiting[0], predecessors, placed)
        waiting.remove(name)
        ordered.append(name)
    return ordered


def _cycle_error(start: str, predecessors: Mapping[str, Mapping[str, str]], placed: set[str]) -> OrderError:
    path: list[str] = []
    name = start
    while name not in path:
        path.append(name)
        name = next(other for other in predecessors[name] if other not in placed)
    cycle = [*path[path.index(name) :], name]
    wishes = ", ".join(predecessors[here][there] for here, there in pairwise(cycle))
    return OrderError(None, f"the plugins' order has a cycle: {wishes}", cycle[:-1])
