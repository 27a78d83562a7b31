"""`trainer.add_hook`: takes a plugin, a `Hook` or a `TrainerHook`, and finds what the methods of the last ask for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from hookline.errors import HooklineError, PluginError, did_you_mean
from hookline.hooks.hook import is_hook
from hookline.hooks.manager import HookAdapter, RolloutHook, mark_of
from hookline.plugin_manager.events import Event
from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs import EvalRewardSummary, TrainerHook, TrainerState

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["AddedHooks"]

MOMENTS: Final[Mapping[str, str]] = {"on_training_start": "on_new_training_run"}
"""Names of methods that are no names of events, and the event of each."""

STATE_NAMES: Final[Mapping[str, str]] = {"losses_stats": "loss_stats"}
"""Names of arguments that are not the names of the state's fields."""

HOOKS: Final = ("checkpoint_hook", "evaluation_hook", "metrics_hook")
"""Trainer hooks that may be asked for although none was added. Hooks of a worker with such a class are not meant."""

OF_HOOKS: Final = ("stats_client", "wandb_run")
"""What a hook may be asked for by another, by the name of the attribute."""

Finder = Callable[[Mapping[str, Any], TrainerState], Any]
"""Finds an argument, given what the event carries and the state."""


class AddedHooks:
    """The hooks of a trainer, whatever their style; all of them are plugins of its manager.

    :param worker: asks hooks in the class style; None where there are no rollouts.
    """

    def __init__(self, plugins: PluginManager, state: TrainerState, worker: RolloutWorker | None = None) -> None:
        self.plugins = plugins
        self.state = state
        self._worker = worker

    def add(self, hook: Any) -> None:
        """Have a hook take part from the next event on."""
        if isinstance(hook, TrainerHook):
            self._check_new(hook)
            name = self.plugins.get_canonical_name(hook)
            adapter = TrainerHookPlugin(hook, name, self)
            self._place(adapter)
            self._hand_emit(hook)
            self.plugins.register(adapter, name)
        elif is_hook(hook):
            if self._worker is None:
                raise HooklineError(
                    f"{type(hook).__name__} is asked after rollouts, and this trainer makes none: it learns from a "
                    "dataset. A plugin with post_training_step or on_epoch_end would be called"
                )
            self._worker.register_hook(hook)
        else:
            self._check_plugin(hook)
            self._check_new(hook)
            self._hand_emit(hook)
            self.plugins.register(hook)

    def _place(self, new: TrainerHookPlugin) -> None:
        """Say of a hook's order what it, and those before it, say by the names of classes and their bases."""
        for name, other in self.plugins.list_name_plugin():
            if isinstance(other, TrainerHookPlugin):
                for own, others in (("after", "before"), ("before", "after")):
                    if _mentions(new.hook, own, other.hook):
                        setattr(new, own, (*getattr(new, own), name))
                    if _mentions(other.hook, own, new.hook):
                        setattr(new, others, (*getattr(new, others, ()), name))
                if _mentions(new.hook, "requires", other.hook):
                    satisfied = _names_of_classes(other.hook)
                    new.requires = tuple(name if own in satisfied else own for own in new.requires)

    def remove(self, hook: Any) -> bool:
        """Call a hook no more; says whether it was there."""
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

    # -- what hooks are asked for ---------------------------------------------------------------------------------

    def find(self, name: str) -> Any | None:
        """The hook or plugin that goes by a name, by its own class before a base of its class."""
        candidates = list(self._in_order_of_preference(with_worker_hooks=name not in HOOKS))
        of_that_class = (own for own in candidates if _snake_case(type(own).__name__) == name)
        of_a_subclass = (own for own in candidates if name in map(_snake_case, _names_of_classes(own)))
        return next(chain(of_that_class, of_a_subclass), None)

    def attribute(self, name: str, state: TrainerState) -> Any | None:
        """What a hook or a plugin has under a name, or keeps for others there."""
        hooks = self._in_order_of_preference(with_worker_hooks=False)
        owners = [*(vars(hook) for hook in hooks if hasattr(hook, "__dict__")), *state.shared.values()]
        return next((owner[name] for owner in owners if owner.get(name) is not None), None)

    def eval_scores(self, state: TrainerState) -> EvalRewardSummary:
        """The summary of the evaluation hook, or of the scores in the state where none was added."""
        get_eval_scores = getattr(self.find("evaluation_hook"), "get_eval_scores", None)
        if callable(get_eval_scores):
            summary: EvalRewardSummary = get_eval_scores()
            return summary
        return EvalRewardSummary.of(state.eval_scores, state.shared["evaluation"].get("epoch"))

    def _in_order_of_preference(self, *, with_worker_hooks: bool) -> Iterator[Any]:
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
        for method, event in self._moments(hooks.plugins.events):
            if mark_of(method) is not None and set(_parameters_of(hook, method)) <= set(event.arguments):
                setattr(self, method.__name__, method)  # an implementation already
            else:
                self.implement(event.name, self._calling(method, event), method, hook.scope)

    def _moments(self, events: Mapping[str, Event]) -> Iterator[tuple[Callable[..., Any], Event]]:
        """The methods that are called, and the event of each."""
        known = {name: MOMENTS.get(name, name) for name in (*events, *MOMENTS)}
        if callable(getattr(self.hook, "restore_training_run", None)):
            del known["on_training_start"]  # it restores runs, and calls this by itself when it does
        for name in dir(type(self.hook)):
            own = getattr(type(self.hook), name)
            if not callable(own) or own is getattr(TrainerHook, name, None):
                continue
            mark = mark_of(own)
            event = str((mark or {}).get("specname") or known.get(name, name))
            is_meant = mark is not None or (name.startswith(("on_", "pre_", "post_")) and name not in MOMENTS)
            if event in events:
                yield getattr(self.hook, name), events[event]
            elif is_meant and not (mark or {}).get("optionalhook"):
                nearest = did_you_mean(event, known)
                raise PluginError(self.hook, f"hook {self._name!r} has a method {name!r}, which is no event{nearest}")

    def _calling(self, method: Callable[..., Any], event: Event) -> Callable[..., Any]:
        """A function with the event's arguments that calls the method with its own."""
        finders: list[tuple[str, Finder, Any]] = []
        for name, parameter in _parameters_of(self.hook, method).items():
            has_default = parameter.default is not parameter.empty
            finder = self._finder(name, event)
            if finder is None and not has_default:
                raise PluginError(
                    self.hook,
                    f"hook {self._name!r}: {method.__name__} asks for {name!r}, which nothing goes by"
                    f"{did_you_mean(name, self._known_names(event))}. Another hook is asked for by its class's name in "
                    "snake case, once it was added",
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
                _take_over(state.policy, result)
            return result

        return _taking(event.arguments, call)

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
        if name in OF_HOOKS:
            return lambda _, state: hooks.attribute(name, state)
        if name in HOOKS or hooks.find(name) is not None:
            return lambda *_: hooks.find(name)
        return None

    def _known_names(self, event: Event) -> set[str]:
        fields = TrainerState.__dataclass_fields__
        return {*event.arguments, "trainer_state", "state", "emit", *STATE_NAMES, *fields, *HOOKS, *OF_HOOKS}


def _parameters_of(hook: TrainerHook, method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a method asks for by name; with `**kwargs`, also what the method asks for that it overrides."""
    found: dict[str, inspect.Parameter] = {}
    for cls in type(hook).__mro__:
        if method.__name__ in vars(cls):
            own = inspect.signature(vars(cls)[method.__name__].__get__(hook, cls)).parameters.values()
            named = {p.name: p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
            found = {**named, **found}
            if not any(p.kind is p.VAR_KEYWORD for p in own):
                break
    return found


def _taking(arguments: tuple[str, ...], call: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """`call` as a function of these arguments: pluggy reads off a function's code what to hand to it."""
    carried = ", ".join(f"{name!r}: {name}" for name in arguments)
    function: Callable[..., Any] = eval(f"lambda {', '.join(arguments)}: _call({{{carried}}})", {"_call": call})
    return function


def _take_over(policy: Any, given: Any) -> None:
    """What a hook returns at the start of a run is a policy to go on with: its weights become the trained policy's."""
    if given is not policy:
        policy.load_state_dict(given if isinstance(given, Mapping) else given.state_dict())


def _mentions(hook: TrainerHook, attribute: str, other: TrainerHook) -> bool:
    """Whether a hook names another, by its class or a base of it, in `after`, `before` or `requires`."""
    names = getattr(hook, attribute, ())
    return isinstance(names, (tuple, list)) and not _names_of_classes(other).isdisjoint(names)


def _names_of_classes(hook: object) -> set[str]:
    return {cls.__name__ for cls in type(hook).__mro__ if cls not in (object, TrainerHook)}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
