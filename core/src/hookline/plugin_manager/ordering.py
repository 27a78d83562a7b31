"""The order of plugins: `after`, `before` and `requires`, applied to pluggy's own order."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hookline.errors import OrderError, PluginError

__all__ = ["Constraints", "constraints_of", "sort_by_constraints"]


@dataclass(frozen=True)
class Constraints:
    """The position of one plugin relative to others."""

    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    newest_last: bool = False
    """Plugins with this flag are called in the order of registration. pluggy calls the newest first."""


def constraints_of(plugin: object, name: str) -> Constraints:
    """The constraints that a plugin declares as attributes."""

    def names(attribute: str) -> tuple[str, ...]:
        value = getattr(plugin, attribute, ())
        if isinstance(value, str) or not isinstance(value, Iterable) or any(not isinstance(n, str) for n in value):
            raise PluginError(
                plugin,
                f"plugin {name!r}: {attribute} must be a tuple of plugin names, such as ('metrics',), not {value!r}",
            )
        return tuple(value)

    return Constraints(
        after=names("after"),
        before=names("before"),
        requires=names("requires"),
        newest_last=getattr(plugin, "newest_last", False) is True,
    )


def sort_by_constraints(names: Sequence[str], constraints: Mapping[str, Constraints]) -> list[str]:
    """Sort topologically and stably: the next name is the first one whose predecessors are all placed.

    Constraints on names that are not in `names` are ignored. Raises `OrderError` for a cycle.
    """
    place = {name: index for index, name in enumerate(names)}
    edges = set(_edges(place, constraints))
    if all(place[before] < place[after] for before, after in edges):
        return list(names)
    waits_for: dict[str, set[str]] = {}
    followers: dict[str, list[str]] = {}
    for before, after in edges:
        waits_for.setdefault(after, set()).add(before)
        followers.setdefault(before, []).append(after)
    ready = [place[name] for name in names if name not in waits_for]  # sorted, so a heap already
    ordered: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        ordered.append(name)
        for follower in followers.get(name, ()):
            waits_for[follower].remove(name)
            if not waits_for[follower]:
                del waits_for[follower]
                heapq.heappush(ready, place[follower])
    if waits_for:
        raise _cycle_error(next(name for name in names if name in waits_for), waits_for, constraints)
    return ordered


def _edges(present: Container[str], constraints: Mapping[str, Constraints]) -> Iterator[tuple[str, str]]:
    """Each pair of which the first must come before the second."""
    for name, own in constraints.items():
        if name in present:
            yield from ((other, name) for other in own.after if other in present)
            yield from ((name, other) for other in own.before if other in present)


def _cycle_error(start: str, waits_for: Mapping[str, set[str]], constraints: Mapping[str, Constraints]) -> OrderError:
    path: list[str] = []
    name = start
    while name not in path:
        path.append(name)
        name = min(waits_for[name])
    cycle = [*path[path.index(name) :], name]
    relations = ", ".join(
        f"{there!r} is before {here!r}" if here in constraints[there].before else f"{here!r} is after {there!r}"
        for here, there in pairwise(cycle)
    )
    return OrderError(None, f"the plugins' order has a cycle: {relations}", cycle[:-1])
