"""The plugin: it adds the source `ray`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline_hookspecs import hookimpl

__all__ = ["RayPlugin"]


class RayPlugin:
    """Registers the source `ray`, whose rollouts are made by the workers of a Ray cluster.

    What it needs is imported when a trainer builds it, and Ray when the run starts.
    """

    @hookimpl
    def register_sources(self) -> Mapping[str, Callable[[Any], Any]]:
        return {"ray": _build}


def _build(request: Any) -> Any:
    from hookline_ray.source import build_ray

    return build_ray(request)
