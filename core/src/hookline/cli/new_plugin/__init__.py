"""`hookline new-plugin NAME`: write the distribution of a new plugin, with tests that pass."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

from cyclopts import Parameter

from hookline.errors import HooklineError

__all__ = ["new_plugin"]


def new_plugin(name: str, /, *, folder: Annotated[Path | None, Parameter(name="--in")] = None) -> None:
    """Write a new plugin as a distribution, ready to install and publish.

    Parameters
    ----------
    name
        The plugin's name: lower-case letters, digits and dashes, such as `nan-guard`.
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
    names = {
        "name": plain,
        "distribution": f"hookline-{plain}",
        "package": f"hookline_{plain.replace('-', '_')}",
        "class_name": "".join(part.capitalize() for part in plain.split("-")),
    }
    _write(resources.files(__package__) / "template", target, names)
    print(f"Wrote {target}. Next:")
    print(f"  pip install -e '{target}[test]'")
    print(f"  pytest {target}")
    print("  hookline plugins")


def _write(source: Traversable, target: Path, names: dict[str, str]) -> None:
    """Copy the template, with names filled in, in contents and paths. The suffix `.in` keeps linters off it."""
    if source.is_dir():
        target.mkdir(parents=True)
        for child in source.iterdir():
            if child.name != "__pycache__":
                _write(child, target / Template(child.name.removesuffix(".in")).substitute(names), names)
    else:
        target.write_text(Template(source.read_text(encoding="utf-8")).substitute(names), encoding="utf-8")
