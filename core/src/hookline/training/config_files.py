"""Configs and run files: change a config by tables of run files and `--set`, and write one as a run file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hookline.errors import ConfigError, ConfigFault, did_you_mean
from hookline.option_models import field_docs, validation_faults
from hookline.plugin_manager.settings import is_redacted
from hookline.run_file import Layer
from hookline.training.config import TrainerConfig, config_faults
from hookline_hookspecs.redaction import redact

__all__ = ["NONE", "apply_layers", "paths_of", "run_file_text"]

Config = TypeVar("Config", bound=TrainerConfig)
T = TypeVar("T")

NONE: Final = "none"
"""How TOML, which has no null, writes None."""

NOT_IN_FILES: Final = {"task": "is the first key of a run file", "resume": "is for the command line: use --resume"}

OF_A_START: Final = ("run_dir", "resume", "task")
"""Fields that a written run file leaves out: the command line gives them."""

WIDTH: Final = 118
"""Characters in a line of its comments."""


def apply_layers(config: Config, layers: Iterable[Layer]) -> Config:
    """The config with the values of these layers; later ones override earlier ones.

    Tables are merged into sections of the config, and into mappings such as `losses`.
    """
    faults: list[ConfigFault] = []
    sources: dict[str, str] = {}
    for layer in layers:
        reserved = [key for key in layer.table if key in NOT_IN_FILES]
        faults += [ConfigFault(f"{layer.where}{key}", NOT_IN_FILES[key]) for key in reserved]
        table = {key: _with_none(value) for key, value in layer.table.items() if key not in NOT_IN_FILES}
        config = _changed(config, table, layer, "", faults)
        sources |= dict.fromkeys(paths_of(table), layer.where)
    for fault in config_faults(config) if sources else ():
        faults.append(ConfigFault(f"{sources.get(fault.where, '')}{fault.where}", fault.problem))
    if faults:
        raise ConfigError(faults)
    return config


def _changed(config: T, table: Mapping[str, Any], layer: Layer, prefix: str, faults: list[ConfigFault]) -> T:
    """`config` with the valid values of a table. Adds a fault for each other one."""
    hints, plain_hints = get_type_hints(type(config), include_extras=True), get_type_hints(type(config))
    known = [own.name for own in fields(config) if own.init]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in table.items():
        path, where = f"{prefix}{key}", f"{layer.where}{prefix}{key}"
        if key not in known:
            hint = did_you_mean(key, known) or f"; known are {', '.join(sorted(known))}"
            faults.append(ConfigFault(where, f"unknown key {key!r}{hint}"))
            continue
        if is_redacted(value):
            faults.append(ConfigFault(where, "contains a redacted secret: give the secret itself"))
            continue
        current = getattr(config, key)
        if is_dataclass(current) and not isinstance(current, type) and isinstance(value, Mapping):
            changes[key] = _changed(current, value, layer, f"{path}.", faults)
            continue
        try:
            validated = TypeAdapter(hints[key]).validate_python(
                _merged(current, value), extra="forbid", context={"folder": layer.folder}
            )
        except ValidationError as error:
            located = partial(_located, where)
            faults += validation_faults(error, plain_hints[key], located)
        except ConfigError as error:  # from the dataclass itself, which names its class and not the key
            faults += [ConfigFault(f"{where}.{own.where.partition('.')[2]}", own.problem) for own in error.faults]
        else:
            changes[key] = _with_absolute_paths(validated, layer.folder)
    try:
        return replace(config, **changes)  # type: ignore[type-var]
    except ConfigError as error:
        where = f"{layer.where}{prefix}"
        faults += [ConfigFault(f"{where}{own.where.partition('.')[2]}", own.problem) for own in error.faults]
        return config


def _located(where: str, path: Sequence[str | int]) -> str:
    return ".".join([where, *map(str, path)])


def _merged(current: Any, value: Any) -> Any:
    if isinstance(current, Mapping) and isinstance(value, Mapping):
        return {**current, **{key: _merged(current.get(key), own) for key, own in value.items()}}
    return value


def _with_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_none(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_with_none(own) for own in value]
    return None if value == NONE else value


def _with_absolute_paths(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return (folder / value.expanduser()).resolve()
    if is_dataclass(value) and not isinstance(value, type):
        inner = {own.name: getattr(value, own.name) for own in fields(value) if own.init}
        return replace(value, **{name: _with_absolute_paths(own, folder) for name, own in inner.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(_with_absolute_paths(own, folder) for own in value)
    if isinstance(value, dict):
        return {key: _with_absolute_paths(own, folder) for key, own in value.items()}
    return value


def paths_of(table: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """The dotted paths of a table's values."""
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from paths_of(value, f"{prefix}{key}.")


def run_file_text(task: str, config: TrainerConfig, settings: Mapping[str, Any]) -> str:
    """The run file that a task with this config amounts to.

    :param settings: settings of plugins, as in a run file.
    """
    lines = [f"task = {_value(task)}", *(f"{key} = {_value(value)}" for key, value in settings.items()), ""]
    return "\n".join([*lines, *_table(config, "", OF_A_START)]).rstrip() + "\n"


def _table(config: Any, prefix: str, left_out: tuple[str, ...] = ()) -> Iterator[str]:
    """The lines of a dataclass. Tables come last, since in TOML all lines after a heading belong to its table."""
    docs = field_docs(type(config))
    own = [field for field in fields(config) if field.init and field.name not in left_out]
    for field in own:
        value = getattr(config, field.name)
        if not _is_table(value):
            yield from _comment(docs.get(field.name, ""))
            yield _line(field.name, value)
    for field in own:
        value, path = getattr(config, field.name), f"{prefix}{field.name}"
        if _is_table(value):
            yield from ("", *_comment(docs.get(field.name) or (type(value).__doc__ or "").partition("\n")[0]))
            yield f"[{path}]"
            yield from _table(value, f"{path}.")


def _line(name: str, value: Any) -> str:
    try:
        return f"{name} = {_value(redact({name: value})[name])}"
    except TypeError:
        return f"# {name} cannot be written: {value!r}"


def _value(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, (bool, str, Path)):
        # JSON's strings are TOML's, but for one control character.
        return json.dumps(value if isinstance(value, bool) else str(value), ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if _is_table(value):
        value = {
            field.name: inner for field in fields(value) if (inner := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())}}}"
    raise TypeError(f"TOML cannot hold {value!r}")


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else json.dumps(key, ensure_ascii=False)


def _is_table(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH)]
