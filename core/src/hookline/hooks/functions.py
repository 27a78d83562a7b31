"""Functions as hooks, `hook_fn(worker, report_data)`, and as loggers, `logger(report_data, step)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookline.errors import HooklineError, did_you_mean
from hookline.hooks.manager import HookAdapter
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
"""The names of hooks, and the event of each."""

Function = Callable[..., Any]


class UnknownHookError(HooklineError, LookupError):
    """A function was given for a hook that does not exist, or something that is no function for one that does."""


@dataclass(frozen=True)
class PolicyWorker:
    """What a hook function gets as `worker`: the trainer, and what is most often wanted of it."""

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
    """The functions of each hook, in their order; one for each name, or several."""
    if not isinstance(hook_fns, Mapping):
        raise UnknownHookError(f"hook_fns is a dictionary of functions by the name of their hook, not {hook_fns!r}")
    functions: dict[str, list[Function]] = {}
    for name, given in hook_fns.items():
        if name not in HOOK_NAMES:
            raise UnknownHookError(
                f"there is no hook {name!r}{did_you_mean(name, HOOK_NAMES)}; known are {', '.join(HOOK_NAMES)}"
            )
        if not callable(given) and (isinstance(given, str) or not isinstance(given, Iterable)):
            raise UnknownHookError(f"{name}: {given!r} is no function that can be called, nor a list of them")
        functions[name] = [given] if callable(given) else list(given)
        for function in functions[name]:
            if not callable(function):
                raise UnknownHookError(f"{name}: {function!r} is no function that can be called")
    return functions


def check_loggers(loggers: Any) -> list[Function]:
    """The loggers in their order."""
    if callable(loggers):
        raise HooklineError(f"custom_logger_fns is a list of functions: write [{_label(loggers)}]")
    if isinstance(loggers, str) or not isinstance(loggers, Iterable):
        raise HooklineError(f"custom_logger_fns is a list of functions, not {loggers!r}")
    given = list(loggers)
    for logger in given:
        if not callable(logger):
            raise HooklineError(f"custom_logger_fns: {logger!r} is no function that can be called")
    return given


def register_hook_functions(plugins: PluginManager, trainer: Any, hook_fns: Mapping[str, Iterable[Function]]) -> None:
    """Register functions by the name of their hook, to be called in their order."""
    worker = PolicyWorker(trainer)
    for name, functions in hook_fns.items():
        for number, function in enumerate(functions, 1):
            plugins.register(_HookFunction(HOOK_NAMES[name], function, worker), f"{name} {number}: {_label(function)}")


def register_loggers(plugins: PluginManager, loggers: Iterable[Function]) -> None:
    """Register loggers, to be called in their order."""
    for number, logger in enumerate(loggers, 1):
        plugins.register(_Logger(logger), f"logger {number}: {_label(logger)}")


class _HookFunction(HookAdapter):
    """One function as a plugin. It may say `critical` or `on_error` as any plugin does, as attributes of its own."""

    def __init__(self, event: str, function: Function, worker: PolicyWorker) -> None:
        super().__init__(function)

        def call(report_data: dict[str, Any]) -> Any:
            return function(worker, report_data)

        self.implement(event, call, function)


class _Logger(HookAdapter):
    """One logger as a plugin. What it raises is reported, and never stops training."""

    def __init__(self, logger: Function) -> None:
        super().__init__(logger)
        self.on_error, self.critical = "warn", False

        def call(report_data: dict[str, Any], step: int) -> Any:
            return logger(report_data, step)

        self.implement("log_metrics", call, logger)


def _label(function: Function) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2])
