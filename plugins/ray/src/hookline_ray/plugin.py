"""The plugin: it adds the source `ray`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline_hookspecs import hookimpl

__all__ = ["RayPlugin"]


class RayPlugin:
    """Registers the source. Neither Ray nor what plays rollouts is imported before a trainer with rollouts is built."""

    @hookimpl
    def register_sources(self) -> Mapping[str, Callable[[Any], Any]]:
        from hookline_ray.source import build_ray

        return {"ray": build_ray}
