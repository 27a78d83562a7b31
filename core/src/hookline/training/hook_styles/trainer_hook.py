"""`TrainerHook`: methods named after moments of training, each with the arguments it happens to want.

    class Reporter(TrainerHook):
        def on_epoch_end(self, losses_stats, policy, trainer_state):
            print(trainer_state.epoch, losses_stats)

What a method asks for is found by name: what the event carries, then the state and its fields, then `emit`, then
another hook by its class (`checkpoint_hook` is the `CheckpointHook` that was added), then what a hook or plugin has of
that name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hookline.plugins.errors import PluginError, did_you_mean
from hookline_hookspecs import Scope, TrainerState, hookimpl

if TYPE_CHECKING:
    from hookline.training.trainer import Trainer

__all__ = ["TrainerHook", "register_trainer_hook"]

MOMENTS: Final[Mapping[str, str]] = {"on_training_start": "on_new_training_run"}
"""Names of methods that are no names of events, and the event of each."""

CARRIED: Final = frozenset(
    {"state", "report_data", "error", "context", "rollout", "version", "changes"}
    | {"request", "scores", "replay", "checkpoint"}
)
"""What the events carry that a hook in this style can have methods for."""

STATE_NAMES: Final[Mapping[str, str]] = {"losses_stats": "loss_stats"}
"""Names of arguments that are not the names of the state's fields."""

MAYBE: Final = ("checkpoint_hook", "evaluation_hook", "metrics_hook", "stats_client", "wandb_run")
"""What a hook may ask for although nobody may have it: it is None then."""


class TrainerHook:
    """Base of hooks in this style. A failing one is treated as any plugin: `critical` or `on_error` say how."""

    scope: ClassVar[Scope] = "driver"
    """Where it is called: on rank 0 only, unless a class says `every_rank`."""


def register_trainer_hook(trainer: Trainer, hook: TrainerHook) -> None:
    """Register a hook as a plugin whose implementations are its methods."""
    name = trainer.plugins.get_canonical_name(hook)
    trainer.plugins.register(TrainerHookPlugin(trainer, hook, name), name)


class TrainerHookPlugin:
    """One implementation for each method that is named after a moment."""

    def __init__(self, trainer: Trainer, hook: TrainerHook, name: str) -> None:
        self.hook = hook
        self.critical = getattr(hook, "critical", False)
        self.on_error = getattr(hook, "on_error", None)
        # In the order in which hooks were added; pluggy alone would call the last one first.
        self.after = tuple(
            other for other, plugin in trainer.plugins.list_name_plugin() if isinstance(plugin, type(self))
        )
        self._trainer = trainer
        events = trainer.plugins.events
        known = [event for event in events if CARRIED.issuperset(events[event].arguments)]
        for method in _moments_of(hook, name, [*known, *MOMENTS]):
            event = MOMENTS.get(method.__name__, method.__name__)
            self._check_parameters(method, name, events[event].arguments)
            # Under the method's own name: a hook may have both `on_training_start` and `on_new_training_run`.
            setattr(self, method.__name__, _implementation(event, hook.scope, self._caller(method, event)))

    def _check_parameters(self, method: Callable[..., Any], name: str, arguments: Iterable[str]) -> None:
        known = {*arguments, "trainer_state", "state", "emit", *STATE_NAMES, *TrainerState.__dataclass_fields__, *MAYBE}
        for parameter in inspect.signature(method).parameters.values():
            if parameter.name not in known and parameter.default is parameter.empty:
                raise PluginError(
                    self.hook,
                    f"hook {name!r}: {method.__name__} asks for {parameter.name!r}, which nothing goes by"
                    f"{did_you_mean(parameter.name, known)}",
                )

    def _caller(self, method: Callable[..., Any], event: str) -> Callable[[Mapping[str, Any]], Any]:
        parameters = inspect.signature(method).parameters

        def call(carried: Mapping[str, Any]) -> Any:
            values = {}
            for name, parameter in parameters.items():
                found = self._find(name, carried)
                has_default = parameter.default is not parameter.empty
                values[name] = parameter.default if found is None and has_default else found
            result = method(**values)
            if event == "on_new_training_run" and result is not None:
                _take_over(self._trainer.policy, result)
            return result

        return call

    def _find(self, name: str, carried: Mapping[str, Any]) -> Any:
        state = self._trainer.state
        if name in carried:
            return carried[name]
        if name in ("trainer_state", "state"):
            return state
        if name == "emit":
            return self._trainer.plugins.emit
        if name == "rollout_stats" and "rollout" in carried:
            return carried["rollout"].stats
        field = STATE_NAMES.get(name, name)
        if field in state.__dataclass_fields__:
            return getattr(state, field)
        others = [getattr(plugin, "hook", plugin) for plugin in self._trainer.plugins.get_plugins()]
        for other in others:
            if _snake_case(type(other).__name__) == name:
                return other
        owners = [vars(other) for other in others if hasattr(other, "__dict__")]
        return next((owner[name] for owner in (*owners, *state.shared.values()) if name in owner), None)


def _moments_of(hook: TrainerHook, name: str, known: list[str]) -> list[Callable[..., Any]]:
    methods = [attribute for attribute in dir(type(hook)) if callable(getattr(hook, attribute))]
    for method in methods:
        if method.startswith(("on_", "pre_", "post_")) and method not in known:
            nearest = did_you_mean(method, known)
            raise PluginError(hook, f"hook {name!r} has a method {method!r}, which is no event{nearest}")
    return [getattr(hook, method) for method in methods if method in known]


def _implementation(event: str, scope: Scope, call: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
    @hookimpl(specname=event, scope=scope)
    def implementation(
        state: Any = None,
        report_data: Any = None,
        error: Any = None,
        context: Any = None,
        rollout: Any = None,
        version: Any = None,
        changes: Any = None,
        request: Any = None,
        scores: Any = None,
        replay: Any = None,
        checkpoint: Any = None,
    ) -> Any:
        # Of arguments with defaults, an implementation is handed those that its event has.
        return call({name: value for name, value in locals().items() if name in CARRIED and value is not None})

    return implementation


def _take_over(policy: Any, given: Any) -> None:
    """What a hook returns at the start of a run is a policy to go on with: its weights become the trained policy's."""
    if given is not policy:
        policy.load_state_dict(given if isinstance(given, Mapping) else given.state_dict())


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
