"""`trainer.add_hook`: registers a plugin, a `Hook` or a `TrainerHook`, whose arguments are injected by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from hookline.errors import HooklineError, PluginError, did_you_mean
from hookline.hooks.hook import is_hook
from hookline.hooks.hook_manager import HookAdapter, RolloutHook, mark_of
from hookline.plugin_manager.events import Event
from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs import EvalRewardSummary, TrainerHook, TrainerState, hookimpl

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["AddedHooks", "trainer_hook_plugin"]

ALIASES: Final[Mapping[str, str]] = {"on_training_start": "on_new_training_run"}
"""The event of each method that is not named after its event."""

STATE_NAMES: Final[Mapping[str, str]] = {"losses_stats": "loss_stats"}
"""The state's field of each argument that is not named after it."""

HOOKS: Final = ("checkpoint_hook", "evaluation_hook", "metrics_hook")
"""Arguments that are trainer hooks, or None if no such hook was added. Class-style hooks do not count."""

HOOK_ATTRIBUTES: Final = ("stats_client", "wandb_run")
"""Arguments that are attributes of another hook."""

Finder = Callable[[Mapping[str, Any], TrainerState], Any]
"""Finds the value of an argument, from the event's arguments and the state."""


class AddedHooks:
    """The hooks of a trainer, of any style. Each is a plugin of its manager.

    :param worker: runs class-style hooks; None for a trainer without rollouts.
    """

    def __init__(self, plugins: PluginManager, state: TrainerState, worker: RolloutWorker | None = None) -> None:
        self.plugins = plugins
        self.state = state
        self._worker = worker

    def add(self, hook: Any) -> None:
        """Register a hook. It is called from the next event on."""
        if isinstance(hook, TrainerHook):
            self._check_new(hook)
            name = self.plugins.get_canonical_name(hook)
            self.plugins.register(self.adapt(hook, name), name)
        elif is_hook(hook):
            if self._worker is None:
                raise HooklineError(
                    f"{type(hook).__name__} runs after rollouts, and this trainer makes none: it trains on a dataset. "
                    "Use a plugin with post_training_step or on_epoch_end"
                )
            self._worker.register_hook(hook)
        else:
            self._check_plugin(hook)
            self._check_new(hook)
            self._hand_emit(hook)
            self.plugins.register(hook)

    def adapt(self, hook: TrainerHook, name: str) -> TrainerHookPlugin:
        """A trainer hook as a plugin."""
        adapter = TrainerHookPlugin(hook, name, self)
        self._place(adapter)
        self._hand_emit(hook)
        return adapter

    def _place(self, new: TrainerHookPlugin) -> None:
        """Translate `after`, `before` and `requires`, which name hook classes or their bases, to plugin names."""
        for name, other in self.plugins.list_name_plugin():
            if isinstance(other, TrainerHookPlugin):
                for own, others in (("after", "before"), ("before", "after")):
                    if _mentions(new.hook, own, other.hook):
                        setattr(new, own, (*getattr(new, own), name))
                    if _mentions(other.hook, own, new.hook):
                        setattr(new, others, (*getattr(new, others, ()), name))
                if _mentions(new.hook, "requires", other.hook):
                    satisfied = _class_names(other.hook)
                    new.requires = tuple(name if own in satisfied else own for own in new.requires)

    def remove(self, hook: Any) -> bool:
        """Unregister a hook. Returns whether it was registered."""
        name = self._name_of(hook)
        if name is not None:
            self.plugins.unregister(name=name)
            return True
        return self._worker is not None and self._worker.unregister_hook(hook)

    def _check_new(self, hook: Any) -> None:
        name = self._name_of(hook)
        if name is not None:
            raise HooklineError(f"the hook {hook!r} was added already, as {name!r}: it would be called twice")

    def _check_plugin(self, plugin: Any) -> None:
        if isinstance(plugin, type):
            raise HooklineError(f"{plugin.__name__} is a class: add an instance of it")
        if not any(self.plugins.parse_hookimpl_opts(plugin, name) for name in dir(plugin)):
            raise HooklineError(
                f"{plugin!r} would never be called: a hook is a plugin, with a method marked with @hookimpl, or a "
                "hookline.hooks.Hook, with should_run(context) and run(context), or a hookline.training.TrainerHook"
            )

    def _hand_emit(self, hook: Any) -> None:
        if hasattr(hook, "use_emit"):
            hook.use_emit(self.plugins.emit)

    def _name_of(self, hook: Any) -> str | None:
        for name, plugin in self.plugins.list_name_plugin():
            if plugin is hook or (isinstance(plugin, TrainerHookPlugin) and plugin.hook is hook):
                return name
        return None

    # -- values of injected arguments -------------------------------------------------------------------------------

    def find(self, name: str) -> Any | None:
        """The hook or plugin whose class has this name in snake case; its own class first, then a base class."""
        candidates = list(self._by_precedence(with_worker_hooks=name not in HOOKS))
        of_that_class = (own for own in candidates if _snake_case(type(own).__name__) == name)
        of_a_subclass = (own for own in candidates if name in map(_snake_case, _class_names(own)))
        return next(chain(of_that_class, of_a_subclass), None)

    def attribute(self, name: str, state: TrainerState) -> Any | None:
        """An attribute of any hook or plugin, or an entry that a plugin keeps in `state.shared`."""
        hooks = self._by_precedence(with_worker_hooks=False)
        owners = [*(vars(hook) for hook in hooks if hasattr(hook, "__dict__")), *state.shared.values()]
        return next((owner[name] for owner in owners if owner.get(name) is not None), None)

    def eval_scores(self, state: TrainerState) -> EvalRewardSummary:
        """The summary of the evaluation hook; without one, of the scores in the state."""
        get_eval_scores = getattr(self.find("evaluation_hook"), "get_eval_scores", None)
        if callable(get_eval_scores):
            summary: EvalRewardSummary = get_eval_scores()
            return summary
        return EvalRewardSummary.of(state.eval_scores, state.shared["evaluation"].get("epoch"))

    def _by_precedence(self, *, with_worker_hooks: bool) -> Iterator[Any]:
        plugins = [plugin for _, plugin in self.plugins.list_name_plugin() if plugin is not None]
        yield from (plugin.hook for plugin in plugins if isinstance(plugin, TrainerHookPlugin))
        yield from (plugin for plugin in plugins if not isinstance(plugin, HookAdapter))
        if with_worker_hooks:
            yield from (plugin.hook for plugin in plugins if isinstance(plugin, RolloutHook))


class TrainerHookPlugin(HookAdapter):
    """A trainer hook as a plugin, with one implementation for each of its methods."""

    def __init__(self, hook: TrainerHook, name: str, hooks: AddedHooks) -> None:
        super().__init__(hook)
        self._name = name
        self._hooks = hooks
        for method, event in self._methods(hooks.plugins.events):
            if mark_of(method) is not None and set(_parameters_of(hook, method)) <= set(event.arguments):
                setattr(self, method.__name__, method)  # no injection needed
            else:
                self.implement(event.name, self._calling(method, event), method, hook.scope)

    def _methods(self, events: Mapping[str, Event]) -> Iterator[tuple[Callable[..., Any], Event]]:
        """The methods that implement events, and the event of each."""
        known = {name: ALIASES.get(name, name) for name in (*events, *ALIASES)}
        if callable(getattr(self.hook, "restore_training_run", None)):
            del known["on_training_start"]  # its restore_training_run calls it
        for name in dir(type(self.hook)):
            own = getattr(type(self.hook), name)
            if not callable(own) or own is getattr(TrainerHook, name, None):
                continue
            mark = mark_of(own)
            event = str((mark or {}).get("specname") or known.get(name, name))
            is_meant = mark is not None or (name.startswith(("on_", "pre_", "post_")) and name not in ALIASES)
            if event in events:
                yield getattr(self.hook, name), events[event]
            elif is_meant and not (mark or {}).get("optionalhook"):
                nearest = did_you_mean(event, known)
                raise PluginError(
                    self.hook, f"hook {self._name!r} has a method {name!r}, which is not an event{nearest}"
                )

    def _calling(self, method: Callable[..., Any], event: Event) -> Callable[..., Any]:
        """A function of the event's arguments that calls the method with the arguments it declares."""
        finders: list[tuple[str, Finder, Any]] = []
        for name, parameter in _parameters_of(self.hook, method).items():
            has_default = parameter.default is not parameter.empty
            finder = self._finder(name, event)
            if finder is None and not has_default:
                raise PluginError(
                    self.hook,
                    f"hook {self._name!r}: {method.__name__} has an unknown argument {name!r}"
                    f"{did_you_mean(name, self._known_names(event))}. An argument that is another hook has the name of "
                    "its class in snake case, and that hook must be added first",
                )
            if finder is not None:
                finders.append((name, finder, parameter.default if has_default else None))
        is_background = inspect.iscoroutinefunction(method) or bool((mark_of(method) or {}).get("background"))

        def call(carried: Mapping[str, Any]) -> Any:
            state = carried.get("state", self._hooks.state)
            state = state.frozen() if is_background else state
            found = {name: (finder(carried, state), default) for name, finder, default in finders}
            result = method(**{name: default if value is None else value for name, (value, default) in found.items()})
            if event.name == "on_new_training_run" and result is not None and not is_background:
                _load_policy(state.policy, result)
            return result

        return _with_signature(event.arguments, call)

    def _finder(self, name: str, event: Event) -> Finder | None:
        hooks, field = self._hooks, STATE_NAMES.get(name, name)
        if name in event.arguments:
            return lambda carried, _: carried[name]
        if name in ("trainer_state", "state"):
            return lambda _, state: state
        if name == "emit":
            return lambda *_: hooks.plugins.emit
        if name == "rollout_stats" and "rollout" in event.arguments:
            return lambda carried, _: {f"rollout/{stat}": value for stat, value in carried["rollout"].stats.items()}
        if name == "eval_scores":
            return lambda _, state: hooks.eval_scores(state)
        if field in TrainerState.__dataclass_fields__:
            return lambda _, state: getattr(state, field)
        if name in HOOK_ATTRIBUTES:
            return lambda _, state: hooks.attribute(name, state)
        if name in HOOKS or hooks.find(name) is not None:
            return lambda *_: hooks.find(name)
        return None

    def _known_names(self, event: Event) -> set[str]:
        fields = TrainerState.__dataclass_fields__
        return {*event.arguments, "trainer_state", "state", "emit", *STATE_NAMES, *fields, *HOOKS, *HOOK_ATTRIBUTES}


def trainer_hook_plugin(hook: TrainerHook, name: str, plugins: PluginManager) -> TrainerHookPlugin:
    """A trainer hook that the settings name, as a plugin. It is made before there is a run."""
    hooks = AddedHooks(plugins, TrainerState())
    adapter = hooks.adapt(hook, name)

    @hookimpl(specname="on_new_training_run", tryfirst=True)
    def use_state(state: TrainerState) -> None:
        hooks.state = state

    adapter.use_state = use_state  # type: ignore[attr-defined]
    return adapter


def _parameters_of(hook: TrainerHook, method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The named parameters of a method; with `**kwargs`, also those of the method that it overrides."""
    found: dict[str, inspect.Parameter] = {}
    for cls in type(hook).__mro__:
        if method.__name__ in vars(cls):
            own = inspect.signature(vars(cls)[method.__name__].__get__(hook, cls)).parameters.values()
            named = {p.name: p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
            found = {**named, **found}
            if not any(p.kind is p.VAR_KEYWORD for p in own):
                break
    return found


def _with_signature(arguments: tuple[str, ...], call: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """`call` as a function of these named arguments, because pluggy inspects the signature."""
    carried = ", ".join(f"{name!r}: {name}" for name in arguments)
    function: Callable[..., Any] = eval(f"lambda {', '.join(arguments)}: _call({{{carried}}})", {"_call": call})
    return function


def _load_policy(policy: Any, given: Any) -> None:
    """Load the weights of a policy that a hook returned at the start of the run."""
    if given is not policy:
        policy.load_state_dict(given if isinstance(given, Mapping) else given.state_dict())


def _mentions(hook: TrainerHook, attribute: str, other: TrainerHook) -> bool:
    """Whether a hook's `after`, `before` or `requires` names another hook's class or a base of it."""
    names = getattr(hook, attribute, ())
    return isinstance(names, (tuple, list)) and not _class_names(other).isdisjoint(names)


def _class_names(hook: object) -> set[str]:
    return {cls.__name__ for cls in type(hook).__mro__ if cls not in (object, TrainerHook)}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
