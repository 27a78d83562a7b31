"""`Hook`: what is asked after every rollout of a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hookline_hookspecs import HookContext

__all__ = ["Hook"]


class Hook(ABC):
    """A hook that fails is treated as any plugin: `critical = True` or `on_error` on its class say how."""

    @abstractmethod
    def should_run(self, context: HookContext) -> bool:
        """Determine if this hook should run at the current step."""

    @abstractmethod
    def run(self, context: HookContext) -> dict[str, Any] | None:
        """Execute the hook; what it returns is merged by name with what other hooks return."""
