"""`hookline new-plugin NAME`: write the distribution of a new plugin, with tests that pass.

`template/common` is written for every kind, then `template/KIND` over it.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated, Final, Literal, NamedTuple

import hookline
from hookline import parsing
from hookline.errors import HooklineError

__all__ = ["KINDS", "new_plugin"]

Kind = Literal["plugin", "sink", "environment", "engine", "verifier"]


class KindOfPlugin(NamedTuple):
    """In what the distributions of one kind differ, besides their code."""

    summary: str
    option: str
    """A line for the settings in its README."""
    extras: str = ""
    """The extras of `hookline` that it needs. Without any, it needs the hookspecs only."""
    others: tuple[str, ...] = ()
    prefix: str = ""
    """What its entry point begins with."""


KINDS: Final[dict[Kind, KindOfPlugin]] = {
    "plugin": KindOfPlugin("A Hookline plugin that logs the losses of a run", 'prefix = "my run"'),
    "sink": KindOfPlugin("A Hookline plugin that stores the metrics of runs", 'file_name = "numbers.jsonl"'),
    "environment": KindOfPlugin("An environment for Hookline", "length = 16", "jax", ("gymnasium>=1", "numpy>=2")),
    "engine": KindOfPlugin("A rollout engine for Hookline", 'on_error = "raise"', "jax,torch"),
    "verifier": KindOfPlugin("A verifier for Hookline", "limit = 0.25", "rewards", prefix="verify-"),
}


def new_plugin(
    name: str,
    /,
    *,
    kind: Kind = "plugin",
    folder: Annotated[Path | None, parsing.Parameter(name="--in")] = None,
) -> None:
    """Write a new plugin as a distribution, ready to install and publish.

    Parameters
    ----------
    name
        The plugin's name: lower-case letters, digits and dashes, such as `nan-guard`.
    kind
        What it begins with: an event (`plugin`), a place for metrics (`sink`), an `environment`, an `engine` that
        generates text, or a `verifier` of responses.
    folder
        Where to write it; by default the current folder.
    """
    plain = name.removeprefix("hookline-")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", plain):
        raise HooklineError(
            f"{name!r} is not a plugin name: use lower-case letters, digits and dashes, as in nan-guard"
        )
    target = (folder or Path.cwd()) / f"hookline-{plain}"
    if target.exists():
        raise HooklineError(f"{target} already exists: choose another name, or remove it")
    template, names = resources.files(__package__) / "template", _names(plain, KINDS[kind])
    try:
        _write(template / "common", target, names)
        _write(template / kind, target, names)
    except OSError as error:
        raise HooklineError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    print(f"Wrote {target}. Next:")
    print(f"  pip install -e '{target}[test]'")
    print(f"  pytest {target}")
    print("  hookline plugins")


def _names(plain: str, kind: KindOfPlugin) -> dict[str, str]:
    # No upper limit: what a version takes away, it warns of before, and a plugin that lacks nothing goes on.
    version = ">=" + ".".join(hookline.__version__.split(".")[:2])
    core = [f"hookline[{kind.extras}]{version}"] if kind.extras else []
    return {
        "name": plain,
        "entry_point": kind.prefix + plain,
        "distribution": f"hookline-{plain}",
        "package": f"hookline_{plain.replace('-', '_')}",
        "class_name": "".join(part.capitalize() for part in plain.split("-")),
        "summary": kind.summary,
        "option": kind.option,
        "dependencies": _quoted([f"hookline-hookspecs{version}", *core, *kind.others]),
        "test_dependencies": _quoted([f"hookline[testing]{version}"]),
    }


def _quoted(requirements: list[str]) -> str:
    return ", ".join(f'"{requirement}"' for requirement in requirements)


def _write(source: Traversable, target: Path, names: dict[str, str]) -> None:
    """Copy the template, with names filled in, in contents and paths. The suffix `.in` keeps linters off it."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for child in source.iterdir():
            if child.name != "__pycache__":
                _write(child, target / Template(child.name.removesuffix(".in")).substitute(names), names)
    else:
        target.write_text(Template(source.read_text(encoding="utf-8")).substitute(names), encoding="utf-8")
