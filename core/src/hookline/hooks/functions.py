"""Functions as plugins: hooks, `hook_fn(worker, report_data)`, and loggers, `logger(report_data, step)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookline.errors import HooklineError, did_you_mean
from hookline.hooks.hook_manager import HookAdapter
from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs import TrainerState

__all__ = [
    "HOOK_NAMES",
    "PolicyWorker",
    "UnknownHookError",
    "check_hook_functions",
    "check_loggers",
    "register_hook_functions",
    "register_loggers",
]

HOOK_NAMES: Final[Mapping[str, str]] = {
    "pre_training_hook": "pre_training",
    "pre_training_step_hook": "pre_training_step",
    "post_training_step_hook": "post_training_step",
    "post_training_hook": "post_training",
    "pre_validation_hook": "pre_validation",
    "pre_per_step_validation_hook": "pre_validation_step",
    "post_per_step_validation_hook": "post_validation_step",
    "post_validation_hook": "post_validation",
}
"""The event of each hook name."""

Function = Callable[..., Any]


class UnknownHookError(HooklineError, LookupError):
    """`hook_fns` has an unknown hook name, or a value that is not a function."""


@dataclass(frozen=True)
class PolicyWorker:
    """The `worker` argument of a hook function: the trainer, with shortcuts to its parts."""

    trainer: Any

    @property
    def config(self) -> Any:
        return self.trainer.config

    @property
    def policy(self) -> Any:
        return self.trainer.policy

    @property
    def state(self) -> TrainerState:
        state: TrainerState = self.trainer.state
        return state


def check_hook_functions(hook_fns: Any) -> dict[str, list[Function]]:
    """Validate `hook_fns`, which has one function or a list of functions for each hook name."""
    if not isinstance(hook_fns, Mapping):
        raise UnknownHookError(f"hook_fns must be a dictionary of functions by hook name, not {hook_fns!r}")
    functions: dict[str, list[Function]] = {}
    for name, given in hook_fns.items():
        if name not in HOOK_NAMES:
            raise UnknownHookError(
                f"there is no hook {name!r}{did_you_mean(name, HOOK_NAMES)}; known are {', '.join(HOOK_NAMES)}"
            )
        if not callable(given) and (isinstance(given, str) or not isinstance(given, Iterable)):
            raise UnknownHookError(f"{name}: {given!r} is not a function or a list of functions")
        functions[name] = [given] if callable(given) else list(given)
        for function in functions[name]:
            if not callable(function):
                raise UnknownHookError(f"{name}: {function!r} is not a function")
    return functions


def check_loggers(loggers: Any) -> list[Function]:
    """Validate `custom_logger_fns`."""
    if callable(loggers):
        raise HooklineError(f"custom_logger_fns must be a list of functions: write [{_label(loggers)}]")
    if isinstance(loggers, str) or not isinstance(loggers, Iterable):
        raise HooklineError(f"custom_logger_fns must be a list of functions, not {loggers!r}")
    given = list(loggers)
    for logger in given:
        if not callable(logger):
            raise HooklineError(f"custom_logger_fns: {logger!r} is not a function")
    return given


def register_hook_functions(plugins: PluginManager, trainer: Any, hook_fns: Mapping[str, Iterable[Function]]) -> None:
    """Register functions by hook name. They are called in order."""
    worker = PolicyWorker(trainer)
    for name, functions in hook_fns.items():
        for number, function in enumerate(functions, 1):
            plugins.register(_HookFunction(HOOK_NAMES[name], function, worker), f"{name} {number}: {_label(function)}")


def register_loggers(plugins: PluginManager, loggers: Iterable[Function]) -> None:
    """Register loggers. They are called in order."""
    for number, logger in enumerate(loggers, 1):
        plugins.register(_Logger(logger), f"logger {number}: {_label(logger)}")


class _HookFunction(HookAdapter):
    """One hook function as a plugin. The function may have the attributes `critical` and `on_error`."""

    def __init__(self, event: str, function: Function, worker: PolicyWorker) -> None:
        super().__init__(function)

        def call(report_data: dict[str, Any]) -> Any:
            return function(worker, report_data)

        self.implement(event, call, function)


class _Logger(HookAdapter):
    """One logger as a plugin. Its errors are reported and never stop training."""

    def __init__(self, logger: Function) -> None:
        super().__init__(logger)
        self.on_error, self.critical = "warn", False

        def call(report_data: dict[str, Any], step: int) -> Any:
            return logger(report_data, step)

        self.implement("log_metrics", call, logger)


def _label(function: Function) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2])
