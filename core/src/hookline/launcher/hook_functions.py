"""Functions as hooks: `hook_fn(worker, report_data)` under the name of a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookline.plugins.errors import HooklineError, did_you_mean
from hookline.plugins.manager import PluginManager
from hookline_hookspecs import TrainerState, hookimpl

__all__ = ["HOOK_NAMES", "HookFunction", "PolicyWorker", "UnknownHookError", "register_hook_functions"]

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


class HookFunction:
    """One function as a plugin. It may say `critical` or `on_error` as any plugin does, as attributes of its own."""

    def __init__(self, event: str, function: Callable[[PolicyWorker, dict[str, Any]], None], trainer: Any) -> None:
        self.critical = getattr(function, "critical", False)
        self.on_error = getattr(function, "on_error", None)
        worker = PolicyWorker(trainer)

        @hookimpl(specname=event)
        def call(report_data: dict[str, Any]) -> None:
            function(worker, report_data)

        self.call = call


def register_hook_functions(
    plugins: PluginManager, trainer: Any, hook_fns: Mapping[str, Callable[..., None] | Iterable[Callable[..., None]]]
) -> None:
    """Register functions by the name of their hook: one for each name, or several that are called in their order."""
    for name, given in hook_fns.items():
        if name not in HOOK_NAMES:
            raise UnknownHookError(
                f"there is no hook {name!r}{did_you_mean(name, HOOK_NAMES)}; known are {', '.join(HOOK_NAMES)}"
            )
        functions = [given] if callable(given) else list(given)
        # pluggy calls the one that was registered last first.
        for number, function in reversed(list(enumerate(functions, 1))):
            if not callable(function):
                raise UnknownHookError(f"{name}: {function!r} is no function that can be called")
            label = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
            plugins.register(HookFunction(HOOK_NAMES[name], function, trainer), f"{name} {number}: {label}")
