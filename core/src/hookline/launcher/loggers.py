"""Functions as loggers: `logger(report_data, step)`, once for each report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookline.plugins.errors import HooklineError
from hookline.plugins.manager import PluginManager
from hookline_hookspecs import hookimpl

__all__ = ["LoggerFunction", "register_loggers"]

Logger = Callable[[dict[str, Any], int], None]


class LoggerFunction:
    """One logger as a plugin. What it raises is reported, and never stops training."""

    on_error = "warn"

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    @hookimpl
    def log_metrics(self, report_data: dict[str, Any], step: int) -> None:
        self._logger(report_data, step)


def register_loggers(plugins: PluginManager, loggers: Sequence[Logger]) -> None:
    """Register loggers, to be called in their order."""
    for number, logger in reversed(list(enumerate(loggers, 1))):
        if not callable(logger):
            raise HooklineError(f"custom_logger_fns: {logger!r} is no function that can be called")
        label = getattr(logger, "__qualname__", type(logger).__name__).rpartition("<locals>.")[2]
        plugins.register(LoggerFunction(logger), f"logger {number}: {label}")
