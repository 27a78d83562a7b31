"""Make a plugin from its class: constructor arguments, validated options, overrides from the settings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final, get_args, get_type_hints

from hookline.errors import ConfigError, ConfigFault, PluginError, did_you_mean
from hookline.option_models import declared_secrets, field_names, is_pydantic_model, validation_faults
from hookline.plugin_manager.faults import ErrorPolicy
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline.plugin_manager.settings import Settings, is_redacted
from hookline_hookspecs import PROJECT_NAME, At, Cycle, Every, Schedule
from hookline_hookspecs.redaction import redact, remember_secrets

__all__ = ["Blueprint", "make_plugin"]

COMMON_KEYS: Final = ("every", "schedule", "on_error")
"""Keys that every plugin's table may have. A plugin's own option of the same name takes precedence."""

SCHEDULES: Final[Mapping[frozenset[str], Callable[..., Schedule]]] = {
    frozenset({"every", "start", "stop"}): lambda every, **limits: Every(every, **limits),
    frozenset({"cycle", "active"}): lambda cycle, active: Cycle(cycle, active),
    frozenset({"at"}): lambda at: At(at),
}


@dataclasses.dataclass
class Blueprint:
    """How to make one plugin: the parameters of its constructor, and its options from the settings."""

    name: str
    target: Any
    """A class or function to call, or a module or object that is the plugin itself."""
    options_model: Any = None
    """The pydantic model or dataclass of the options, or None if the constructor takes none."""
    options_parameter: str | None = None
    """The constructor's parameter for the options. None if each option is a parameter of its own."""
    takes_emit: bool = False
    options: Any = None
    """The validated options."""

    @classmethod
    def of(cls, name: str, target: Any) -> Blueprint:
        """Inspect the constructor.

        A parameter whose type is a pydantic model or a dataclass declares the options. Without one, every parameter
        is an option. `emit` is the manager's.
        """
        if isinstance(target, ModuleType) or not callable(target):
            return cls(name, target)
        constructor = inspect.getattr_static(target, "__init__") if isinstance(target, type) else target
        if constructor is object.__init__:
            return cls(name, target)
        hints = _type_hints(name, target, constructor)
        parameters = [
            parameter
            for parameter in inspect.signature(target).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        takes_emit = any(parameter.name == "emit" for parameter in parameters)
        others = [parameter for parameter in parameters if parameter.name != "emit"]
        declaring = next((parameter for parameter in others if _is_model(hints.get(parameter.name))), None)
        if declaring is None:
            return cls(name, target, _model_of(others, hints), None, takes_emit)
        for parameter in others:
            if parameter is not declaring and parameter.default is parameter.empty:
                raise PluginError(
                    target,
                    f"plugin {name!r}: its constructor has a parameter {parameter.name!r} besides its options: "
                    f"make it a field of {hints[declaring.name].__name__}",
                )
        return cls(name, target, hints[declaring.name], declaring.name, takes_emit)

    def read_options(self, settings: Settings) -> list[ConfigFault]:
        """Validate the options in the settings, and return all faults."""
        values = {k: v for k, v in settings.options.get(self.name, {}).items() if k not in self._common_keys()}
        recorded = settings.recorded.get(self.name, {})
        known = field_names(self.options_model)
        # A resumed run may have begun with another version of the plugin, with other options.
        values = {k: v for k, v in values.items() if k in known or k not in recorded}
        remember_secrets(values)
        for secret in declared_secrets(self.options_model, values):
            remember_secrets(secret, "secret")  # before validation, whose errors must not show them
        if self.options_model is None:
            return [
                ConfigFault(settings.option_origin(self.name, [key]), f"plugin {self.name!r} takes no options")
                for key in values
            ]
        faults = self._validate(values, settings)
        lost = [key for key, before in recorded.items() if is_redacted(before) and key in known and key not in values]
        if not faults and lost:
            faults = self._secrets_to_give_again(lost, recorded)
        return faults

    def _validate(self, values: dict[str, Any], settings: Settings) -> list[ConfigFault]:
        if not values and _has_defaults(self.options_model):
            get_type_hints(self.options_model)  # an unknown type is an error now, not when an option is set
            self.options = self.options_model()
            return []
        from pydantic import TypeAdapter, ValidationError  # slow to import, and most plugins have nothing to validate

        try:
            self.options = TypeAdapter(self.options_model).validate_python(values, extra="forbid")
        except ValidationError as error:
            return validation_faults(error, self.options_model, lambda path: settings.option_origin(self.name, path))
        remember_secrets(self.options)
        return []

    def _secrets_to_give_again(self, keys: Sequence[str], recorded: Mapping[str, Any]) -> list[ConfigFault]:
        from pydantic_core import to_jsonable_python

        now = redact(to_jsonable_python(self.options, fallback=repr))
        return [
            ConfigFault(
                f"{self.name}.{key}",
                "contains a secret, which is not saved with the run. Set it again to resume: "
                f"-o {self.name}.{key}=..., the environment or the config file",
            )
            for key in keys
            if now.get(key) != recorded[key]
        ]

    def overrides_in(self, settings: Settings) -> dict[str, Any]:
        """The values of `COMMON_KEYS` in the settings."""
        return {k: v for k, v in settings.options.get(self.name, {}).items() if k in self._common_keys()}

    def build(self, manager: PluginManager) -> Any:
        """Make the plugin."""
        if isinstance(self.target, ModuleType) or not callable(self.target):
            return self.target
        arguments = {"emit": manager.emit} if self.takes_emit else {}
        if self.options_parameter is not None:
            arguments[self.options_parameter] = self.options
        elif self.options is not None:
            arguments |= vars(self.options)
        plugin = self.target(**arguments)
        if plugin is None:
            raise PluginError(
                self.target,
                f"plugin {self.name!r}: its factory returned None: return the plugin",
            )
        return _adapted(plugin, self.name, manager)

    def overrides(
        self,
        settings: Settings,
        distribution: str | None,
        schedules: Mapping[str, Schedule | None],
        clocks: Mapping[str, str],
    ) -> tuple[Overrides, list[ConfigFault]]:
        """The schedules and error policy from the settings, which replace the plugin's own, and their faults.

        :param schedules: the plugin's schedule of each event that it implements.
        :param clocks: the clock of each event.
        """
        faults: list[ConfigFault] = []
        values = self.overrides_in(settings)

        def fault(path: list[str], problem: str) -> None:
            faults.append(ConfigFault(settings.option_origin(self.name, path), problem))

        every = None
        if "every" in values:
            every = _parse_schedule(values["every"], ["every"], fault)
            if every is not None and not any(schedules.values()):
                first = next((event for event in schedules if clocks.get(event) != "none"), "EVENT")
                fault(["every"], f"plugin {self.name!r} has no schedule; give an event one by schedule.{first}")
        per_event: dict[str, Schedule] = {}
        for event, value in _table(values.get("schedule", {}), fault).items():
            if event not in schedules:
                fault(
                    ["schedule", event], f"plugin {self.name!r} does not implement it{did_you_mean(event, schedules)}"
                )
            elif clocks[event] == "none":
                fault(["schedule", event], "the event has no clock")
            else:
                parsed = _parse_schedule(value, ["schedule", event], fault)
                if parsed is not None:
                    per_event[event] = parsed
        on_error = values.get("on_error")
        if on_error is not None and on_error not in get_args(ErrorPolicy):
            hint = did_you_mean(str(on_error), get_args(ErrorPolicy))
            fault(["on_error"], f"must be 'raise', 'warn' or 'disable', got {redact(on_error)!r}{hint}")
        overrides = Overrides(schedule=every, event_schedules=per_event, on_error=on_error, distribution=distribution)
        return overrides, faults

    def _common_keys(self) -> set[str]:
        return set(COMMON_KEYS) - set(field_names(self.options_model))


def make_plugin(
    name: str,
    target: Any,
    options: dict[str, Any],
    manager: PluginManager,
    origins: Mapping[tuple[str, str], str] | None = None,
) -> Any:
    """Make a plugin with these options. Raises a `ConfigError` with all faults; `origins` are those of `Settings`."""
    blueprint = Blueprint.of(name, target)
    faults = blueprint.read_options(Settings(options={name: options}, origins=dict(origins or {})))
    if faults:
        raise ConfigError(faults)
    return blueprint.build(manager)


def _type_hints(name: str, target: Any, constructor: Any) -> Mapping[str, Any]:
    try:
        return get_type_hints(constructor)
    except NameError as error:
        raise PluginError(
            target,
            f"plugin {name!r}: the types of its constructor cannot be read ({error}); "
            "import them at run time, not under TYPE_CHECKING",
        ) from error


def _is_model(hint: Any) -> bool:
    return is_pydantic_model(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def _has_defaults(model: Any) -> bool:
    """Whether a model is a dataclass that can be made without arguments."""
    if not dataclasses.is_dataclass(model) or is_pydantic_model(model):
        return False
    missing = dataclasses.MISSING
    return not any(own.init and own.default is missing is own.default_factory for own in dataclasses.fields(model))


def _model_of(parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> Any:
    """A dataclass with a field for each parameter of a constructor; None if there are none."""
    if not parameters:
        return None
    fields: list[Any] = []
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            default = partial(lambda value: value, parameter.default)  # a dataclass takes no list as a default
            fields.append((parameter.name, hint, dataclasses.field(default_factory=default)))
    namespace = {"__pydantic_config__": {"arbitrary_types_allowed": True}}
    return dataclasses.make_dataclass("Parameters", fields, kw_only=True, namespace=namespace)


def _adapted(plugin: Any, name: str, manager: PluginManager) -> Any:
    """The plugin that an object of another style amounts to.

    Its class names the function that adapts it, `hookline_adapter = "module:function"`. The function is called with the
    object, the plugin's name and the manager.
    """
    adapter = getattr(type(plugin), f"{PROJECT_NAME}_adapter", None)
    if adapter is None:
        return plugin
    module, _, function = adapter.partition(":")
    return getattr(importlib.import_module(module), function)(plugin, name, manager)


def _table(value: Any, fault: Callable[[list[str], str], None]) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    fault(["schedule"], f"must be a table of events, such as schedule.on_epoch_end = 5, got {redact(value)!r}")
    return {}


def _parse_schedule(value: Any, path: list[str], fault: Callable[[list[str], str], None]) -> Schedule | None:
    """A number, or a table with `every` (and `start`, `stop`), with `cycle` and `active`, or with `at`."""
    table = value if isinstance(value, dict) else {"every": value}
    for keys, make in SCHEDULES.items():
        if table and table.keys() <= keys:
            try:
                return make(**table)
            except (TypeError, ValueError) as error:
                fault(path, f"is not a schedule: {error}")
                return None
    fault(
        path,
        f"is not a schedule: use a number, {{every, start, stop}}, {{cycle, active}} or {{at}}, got {redact(value)!r}",
    )
    return None
