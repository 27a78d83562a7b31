"""Read the settings of plugins from six sources. Later sources override earlier ones.

1. `[tool.hookline]` in the nearest pyproject.toml that has it
2. `hookline.toml` beside it (the same keys, at the top level)
3. the run file, if there is one: `disable`, `load`, `required`, `[[hooks]]` and `[plugins.NAME]`
4. the environment: HOOKLINE_DISABLE, HOOKLINE_ALLOW, HOOKLINE_LOAD and HOOKLINE_REQUIRED (separated by commas),
   HOOKLINE_STRICT, and HOOKLINE_OPTIONS ("checkpoint.every=5 metrics.csv=true")
5. for a resumed run, the `config.json` of its folder: the options and plugins of the project that it began with, and
   the plugins disabled then
6. the command line: `-p no:NAME`, `-p NAME` and `-p file.py:NAME`, `-o PLUGIN.KEY=VALUE`

A plugin is selected by `name`, or by `name@distribution` if two distributions have one of that name. Every setting
records its source. Faults are collected, not raised, so that all can be reported together.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.errors import ConfigFault, did_you_mean
from hookline.importing import NamedObject
from hookline_hookspecs.redaction import REDACTED, redact

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from hookline.run_file import RunFile

__all__ = ["ProjectEntry", "Settings", "is_redacted", "normalized", "parse_value", "read_settings"]

ENVIRONMENT: Final = {
    "HOOKLINE_DISABLE": "disable",
    "HOOKLINE_ALLOW": "allow",
    "HOOKLINE_LOAD": "load",
    "HOOKLINE_REQUIRED": "required",
    "HOOKLINE_STRICT": "strict",
    "HOOKLINE_OPTIONS": "plugins",
}

KEYS: Final = (
    "disable", "allow", "load", "hooks", "required", "strict", "background_capacity", "drain_seconds", "plugins",
)  # fmt: skip
"""The keys of `[tool.hookline]`."""

DEEPEST: Final = 32
TOO_DEEP: Final = f"is nested more than {DEEPEST} levels deep"
LONGEST_PATH: Final = 200
"""Characters of a `-o` argument that are shown in a fault."""


@dataclass(frozen=True)
class ProjectEntry:
    """A plugin that the settings load from a module or file of the project."""

    name: str
    reference: NamedObject
    where: str
    """The setting that names it."""
    recorded: bool = False
    """The setting is the config of the run that is resumed."""


@dataclass
class Settings:
    """The merged settings of all sources."""

    disabled: dict[str, str] = field(default_factory=dict)
    """The source that disables each plugin."""
    enabled: set[str] = field(default_factory=set)
    """Exceptions to a disabled name, as `name@distribution`."""
    allowed: dict[str, str] | None = None
    """The source that allows each plugin; None allows all."""
    loaded: list[ProjectEntry] = field(default_factory=list)
    """The plugins of the project, without a distribution."""
    required: list[tuple[Requirement, str]] = field(default_factory=list)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options by plugin and key."""
    origins: dict[tuple[str, str], str] = field(default_factory=dict)
    """The source of each option, by plugin and key."""
    folder: Path | None = None
    """The folder of the config file; None if there is none."""
    strict: bool = False
    background_capacity: int = 256
    drain_seconds: float = 5.0
    mentions: list[tuple[str, str]] = field(default_factory=list)
    """Every plugin name in the settings, and its source."""
    faults: list[ConfigFault] = field(default_factory=list)
    recorded: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The options that a resumed run began with, by plugin and key. Secrets are redacted."""
    notes: list[str] = field(default_factory=list)
    """Messages about options that differ from the recorded ones."""

    def option_origin(self, plugin: str, path: Sequence[str | int]) -> str:
        """The source of the option at `path`, with the key. For a missing option, where to put it.

        An empty path is all options of the plugin.
        """
        if not path:
            given = [where for (name, _), where in self.origins.items() if name == plugin]
            return ", ".join(given) or f"[tool.hookline.plugins.{plugin}]"
        first, *rest = map(str, path)
        return ".".join([self.origins.get((plugin, first), f"[tool.hookline.plugins.{plugin}] {first}"), *rest])

    def add_layer(self, layer: Mapping[str, Any], where: Mapping[str, str], folder: Path) -> None:
        """Merge one source; `where` names the source of each key, and paths are relative to `folder`."""
        for text in layer.get("load", ()):
            self.load(text, where["load"], folder)
        named: dict[str, str] = {}
        for number, hook in enumerate(layer.get("hooks", ())):
            self._add_hook(hook, f"{where['hooks']}[{number}]", folder, named)
        for name in layer.get("disable", ()):
            self.disable(name, where["disable"])
        if layer.get("allow") is not None:
            self.allowed = dict.fromkeys(map(_selector, layer["allow"]), where["allow"])
            self.mentions += [(name, where["allow"]) for name in layer["allow"]]
        for text in layer.get("required", ()):
            self._require(text, where["required"])
        for key in ("strict", "background_capacity", "drain_seconds"):
            if layer.get(key) is not None:
                setattr(self, key, layer[key])
        for plugin, options in layer.get("plugins", {}).items():
            self.mentions.append((plugin, f"{where['plugins']}.{plugin}"))
            for key, value in options.items():
                self.set_option(plugin, key, value, f"{where['plugins']}.{plugin}.{key}")

    def load(self, text: str, where: str, folder: Path) -> ProjectEntry | None:
        """Add a plugin of the project: `module:NAME` or `path/to/file.py:NAME`, with `name=` before it or without."""
        entry = self._entry(text, where, folder)
        if entry is not None:
            self._add_entry(entry)
        return entry

    def _entry(self, text: str, where: str, folder: Path, name: str | None = None) -> ProjectEntry | None:
        given, equals, rest = (own.strip() for own in text.partition("="))
        reference = NamedObject.parse(rest if equals else given, folder.resolve())
        if reference is None:
            problem = f"{text!r} is not of the form module:NAME or path/to/file.py:NAME"
            self.faults.append(ConfigFault(where, problem))
            return None
        name = name or (given if equals else _default_name(reference))
        if not re.fullmatch(r"[\w-]+", name):
            problem = f"{name!r} is not a plugin name: use letters, digits and dashes, as in nan-guard=file.py:NanGuard"
            self.faults.append(ConfigFault(where, problem))
            return None
        return ProjectEntry(name, reference, where)

    def _add_entry(self, entry: ProjectEntry) -> None:
        if all((own.name, own.reference) != (entry.name, entry.reference) for own in self.loaded):
            self.loaded.append(entry)

    def _add_hook(self, table: Mapping[str, Any], where: str, folder: Path, named: dict[str, str]) -> None:
        """`[[hooks]]`: `use` names a class, `name` the plugin; the other keys are options, such as its arguments.

        :param named: the tables of this source that came before, by the names of their plugins.
        """
        for key, example in (("use", "my_project.hooks:HealthHook"), ("name", "health")):
            if not isinstance(table.get(key, "" if key == "name" else None), str):
                self.faults.append(ConfigFault(f"{where}.{key}", f'must be a string, as in {key} = "{example}"'))
                return
        entry = self._entry(table["use"], f"{where}.use", folder, table.get("name"))
        if entry is None:
            return
        if entry.name in named:  # its options would take the place of the other's
            problem = f"{entry.name!r} is the name of {named[entry.name]} too: give one of them a `name` of its own"
            self.faults.append(ConfigFault(where, problem))
            return
        named[entry.name] = where
        self._add_entry(entry)
        for key, value in table.items():
            if key not in ("use", "name"):
                self.set_option(entry.name, key, value, f"{where}.{key}")

    def _require(self, text: str, where: str) -> None:
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            self.required.append((Requirement(text), where))
        except InvalidRequirement:
            problem = f"{text!r} is not a plugin name with an optional version, such as 'checkpoint>=1'"
            self.faults.append(ConfigFault(where, problem))

    def disable(self, name: str, where: str) -> None:
        own = _selector(name)
        self.disabled[own] = where
        self.enabled = {other for other in self.enabled if not _covers(own, other)}
        self.mentions.append((name, where))

    def enable(self, name: str, where: str) -> None:
        own = _selector(name)
        self.disabled = {other: by for other, by in self.disabled.items() if not _covers(own, other)}
        if "@" in own:
            self.enabled.add(own)
        if self.allowed is not None:
            self.allowed[own] = where
        self.mentions.append((name, where))

    def disabled_reason(self, name: str, distribution: str) -> str | None:
        """Why a plugin of a distribution is disabled; None if it is enabled."""
        exact = _selector(f"{name}@{distribution}")
        for own in () if exact in self.enabled else (exact, name):
            if own in self.disabled:
                return f"by {self.disabled[own]}"
        if self.allowed is None or name in self.allowed or exact in self.allowed:
            return None
        return f"not allowed by {next(iter(self.allowed.values()), 'an empty allow-list')}"

    def set_option(self, plugin: str, key: str, value: Any, where: str) -> None:
        if _is_too_deep(value):
            self.faults.append(ConfigFault(where, TOO_DEEP))
            return
        if is_redacted(value):
            problem = f"{REDACTED} is a redacted secret: give the secret itself"
            self.faults.append(ConfigFault(where, problem))
            return
        options = self.options.setdefault(plugin, {})
        before, options[key] = options.get(key), _merged(options.get(key), value)
        self.origins[plugin, key] = where
        if key in self.recorded.get(plugin, {}) and options[key] != before:
            shown = [json.dumps(redact({key: own})[key], default=str) for own in (before, options[key])]
            self.notes.append(f"changed: {plugin}.{key} {' -> '.join(shown)}")

    def add_recorded(self, plugins: Mapping[str, Any], disabled: Iterable[str], where: str) -> None:
        """Merge the settings recorded in a run's config. Plugins in it may have been uninstalled since."""
        for name in disabled:
            self.disabled.setdefault(_selector(name), f"{where}: disabled")
        for plugin, own in plugins.items():
            self.recorded[plugin] = dict(own.get("options", {}))
            for key, value in self.recorded[plugin].items():
                if is_redacted(value):
                    continue  # use the current sources; if they lack the option, it must be given again
                options = self.options.setdefault(plugin, {})
                if key in options and options[key] != value:
                    self.notes.append(
                        f"{self.origins[plugin, key]} is ignored: the resumed run keeps its recorded "
                        f"{key} = {json.dumps(value)}; change it by -o {plugin}.{key}=..."
                    )
                options[key] = value
                self.origins[plugin, key] = f"{where}: plugins.{plugin}.options.{key}"

    def load_recorded(self, plugins: Mapping[str, Any], where: str) -> None:
        """Load the plugins of the project that a run began with, where the other sources do not name them."""
        known = {entry.name for entry in self.loaded}
        for plugin, own in plugins.items():
            place = own.get("load")
            if place is not None and plugin not in known:
                reference = NamedObject(place["module"], place["name"], Path(place["folder"]))
                self.loaded.append(ProjectEntry(plugin, reference, f"{where}: plugins.{plugin}.load", recorded=True))


def read_settings(
    folder: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    plugin_arguments: Iterable[str] = (),
    option_arguments: Iterable[str] = (),
    recorded: Path | None = None,
    run_file: RunFile | None = None,
) -> Settings:
    """Read all sources. Config files are searched in `folder` (default: the current one), then in its parents.

    :param recorded: the `config.json` of a run to resume.
    """
    settings = Settings()
    for path, table, prefix in _find_config(folder or Path.cwd(), settings.faults):
        settings.folder = path.parent
        _add_table(settings, table, f"{_shown(path)}: {prefix}", path.parent)
    if run_file is not None:
        _add_table(settings, run_file.settings, run_file.config.where, run_file.config.folder)
    _add_environment(settings, os.environ if environ is None else environ)
    config = {} if recorded is None else json.loads(recorded.read_text(encoding="utf-8"))
    if recorded is not None:
        settings.add_recorded(config.get("plugins", {}), config.get("disabled", ()), _shown(recorded))
    for argument in plugin_arguments:
        _add_plugin_argument(settings, argument)
    for argument in option_arguments:
        _add_option_argument(settings, argument, "-o ")
    if recorded is not None:
        settings.load_recorded(config.get("plugins", {}), _shown(recorded))
    return settings


def is_redacted(value: Any) -> bool:
    """Whether a value contains a redacted secret."""
    if isinstance(value, Mapping):
        return any(map(is_redacted, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_redacted, value))
    return isinstance(value, str) and REDACTED in value


def normalized(name: str) -> str:
    """The name of a distribution as packaging tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _selector(text: str) -> str:
    """`name`, or `name@distribution` with the distribution's name normalised."""
    name, at, distribution = text.partition("@")
    return f"{name}@{normalized(distribution)}" if at else name


def _covers(selector: str, other: str) -> bool:
    return selector in (other, other.partition("@")[0])


def _find_config(folder: Path, faults: list[ConfigFault]) -> list[tuple[Path, Mapping[str, Any], str]]:
    for place in (folder, *folder.resolve().parents):
        found: list[tuple[Path, Mapping[str, Any], str]] = []
        project = _read_toml(place / "pyproject.toml", faults)
        tools = project.get("tool") if project else None
        table = tools.get("hookline") if isinstance(tools, dict) else None
        if table is not None:
            found.append((place / "pyproject.toml", table, "tool.hookline."))
        own = _read_toml(place / "hookline.toml", faults)
        if own is not None:
            found.append((place / "hookline.toml", own, ""))
        if found or faults:
            return found
    return []


def _read_toml(path: Path, faults: list[ConfigFault]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(ConfigFault(_shown(path), f"is not valid TOML: {error}"))
    except RecursionError:
        faults.append(ConfigFault(_shown(path), TOO_DEEP))
    except OSError as error:
        faults.append(ConfigFault(_shown(path), f"cannot be read: {error.strerror}"))
    return None


def _default_name(reference: NamedObject) -> str:
    """`NanGuard` and `nan_guard` are `nan-guard`."""
    name = reference.attribute or (reference.file.stem if reference.file else reference.module.rpartition(".")[2])
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return words.replace("_", "-").strip("-").lower()


def _add_plugin_argument(settings: Settings, argument: str) -> None:
    where, name = f"-p {argument}", argument.removeprefix("no:")
    names_code = ":" in name or name.endswith(".py")
    if name == argument and names_code:
        entry = settings.load(argument, where, Path.cwd())
        if entry is not None:
            settings.enable(entry.name, where)
    elif names_code:
        settings.faults.append(ConfigFault(where, "turn a plugin off by its name, as in -p no:nan-guard"))
    elif name == argument:
        settings.enable(name, where)
    else:
        settings.disable(name, where)


def _add_table(settings: Settings, table: Any, prefix: str, folder: Path) -> None:
    if isinstance(table, dict) and "tool" in table and prefix.endswith(": "):
        problem = "in hookline.toml the keys are at the top level, not under [tool.hookline]"
        settings.faults.append(ConfigFault(f"{prefix}tool", problem))
        return
    settings.add_layer(
        _read_table(table, settings, lambda key: prefix + key), {key: prefix + key for key in KEYS}, folder
    )


def _read_table(table: Any, settings: Settings, locate: Callable[[str], str]) -> Mapping[str, Any]:
    """The validated settings in a table; none if it has faults, which are added to the settings."""
    from hookline.plugin_manager.settings_schema import read_table  # imports pydantic

    layer, faults = read_table(table)
    settings.faults += [ConfigFault(locate(fault.where), fault.problem) for fault in faults]
    return layer


def _add_environment(settings: Settings, environ: Mapping[str, str]) -> None:
    for variable, key in ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        if key == "plugins":
            _add_options_variable(settings, variable, text)
            continue
        if key == "strict":
            layer = _read_table({key: text}, settings, lambda _: "HOOKLINE_STRICT")
        else:
            layer = {key: [name.strip() for name in text.split(",") if name.strip()]}
        settings.add_layer(layer, {key: variable}, Path.cwd())
    for variable in environ:
        if variable.startswith("HOOKLINE_") and variable not in ENVIRONMENT:
            # Plugins have variables of their own: report only close misspellings of ours.
            meant = difflib.get_close_matches(variable, ENVIRONMENT, n=1, cutoff=0.85)
            if meant:
                settings.faults.append(ConfigFault(variable, f"is not a setting{did_you_mean(variable, ENVIRONMENT)}"))


def _add_options_variable(settings: Settings, variable: str, text: str) -> None:
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        settings.faults.append(ConfigFault(variable, f"cannot be split into options ({error})"))
        return
    for argument in arguments:
        _add_option_argument(settings, argument, f"{variable}: ")


def _add_option_argument(settings: Settings, argument: str, place: str) -> None:
    path, equals, text = argument.partition("=")
    # Without the value: it may be a secret under a misspelt name.
    where = place + _shortened(path)
    plugin, dot, key = path.partition(".")
    if not (equals and dot and plugin and key):
        settings.faults.append(ConfigFault(where, "is not of the form PLUGIN.KEY=VALUE, such as checkpoint.every=5"))
        return
    first, *rest = key.split(".")
    try:
        value = parse_value(text)
    except RecursionError:
        settings.faults.append(ConfigFault(where, TOO_DEEP))
        return
    for inner in reversed(rest):
        value = {inner: value}
    settings.mentions.append((plugin, where))
    settings.set_option(plugin, first, value, place + _shortened(f"{plugin}.{first}"))


def _shortened(path: str) -> str:
    return path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"


def parse_value(text: str) -> Any:
    """A TOML value. Text that is not TOML is a string, so that strings need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is_too_deep(value: Any) -> bool:
    # Level by level, because a recursive function would hit the recursion limit.
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
    return bool(level)


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)
