"""Write a task and its config as a run file, with each field's docstring as a comment."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from hookline.field_docs import field_docs
from hookline.training.config import TrainerConfig
from hookline.training.config_layers import NONE
from hookline_hookspecs.redaction import redact

__all__ = ["run_file_text"]

OF_A_START: Final = ("run_dir", "resume", "task")
"""Fields that are left out: the command line gives them."""

WIDTH: Final = 118


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
