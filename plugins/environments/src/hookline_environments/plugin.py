"""The plugin: one family of environments for each library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline_hookspecs import hookimpl

__all__ = ["Environments"]


class Environments:
    """Adds environments of Gymnasium, gymnax, reasoning-gym, verifiers and OpenEnv.

    None of their libraries is imported before one of its environments is made.
    """

    @hookimpl
    def register_environments(self) -> Mapping[str, Callable[..., Any]]:
        from hookline_environments import from_gymnasium, from_gymnax, from_reasoning_gym, processes

        return {
            "gymnasium:": from_gymnasium.gymnasium_environment,
            "gymnax:": from_gymnax.gymnax_environment,
            "openenv:": processes.openenv_environment,
            "process:": processes.process_environment,
            "reasoning-gym:": from_reasoning_gym.reasoning_gym_environment,
            "verifiers:": processes.verifiers_environment,
        }
