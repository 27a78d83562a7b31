"""Versions and hashes of what takes part in a run: plugins, Hookline itself, and frameworks.

The hash of a plugin is over the files of its package as they are now, so an editable install or an edit by hand shows.
Frameworks have gigabytes of files; their hash is over the hashes that pip recorded when it installed them.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import importlib_metadata

from hookline.plugin_manager.discovery import InstalledPlugin

if TYPE_CHECKING:
    from hookline.plugin_manager.loading import PluginRecord

__all__ = ["fingerprint_of_plugin", "fingerprints_of_packages"]

OWN: Final = ("hookline", "hookline-hookspecs")
FRAMEWORKS: Final = (
    "gymnasium", "jax", "jaxlib", "lightning", "mlx", "mlx-lm", "numpy", "peft", "ray", "stable-baselines3",
    "tokenizers", "torch", "transformers", "trl",
)  # fmt: skip
"""The frameworks that a run may use. Those that are installed take part."""


def fingerprint_of_plugin(record: PluginRecord) -> dict[str, Any]:
    """Where a loaded plugin comes from, its version, and the hash of its code."""
    found = record.found
    if isinstance(found, InstalledPlugin):
        assert found.entry_point is not None, "an active plugin has an entry point"
        return {**found.recorded, "hash": _hash_of_package(found.entry_point.module.partition(".")[0])}
    reference = found.entry.reference
    if reference.file is not None:
        return {**found.recorded, "hash": _hash_of_files([reference.file], reference.file.parent)}
    return {**found.recorded, "hash": _hash_of_package(reference.module.partition(".")[0], "*.py")}


@cache
def fingerprints_of_packages() -> dict[str, dict[str, str]]:
    """Version and hash of Hookline and of the installed frameworks, and the version of Python, by name."""
    found = {"python": {"version": platform.python_version()}}
    for name in (*OWN, *FRAMEWORKS):
        try:
            distribution = importlib_metadata.distribution(name)
        except importlib_metadata.PackageNotFoundError:
            continue
        own = _hash_of_package(name.replace("-", "_")) if name in OWN else _recorded_hash(distribution)
        found[name] = {"version": distribution.version, "hash": own}
    return found


@cache
def _hash_of_package(name: str, pattern: str = "*") -> str:
    """The hash of the files of an imported package, or of the file of an imported module.

    :param pattern: which files. The package of a project may have a run's folder in it.
    """
    module: ModuleType = sys.modules[name]
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    if not folders:
        return _hash_of_files([Path(str(module.__file__))], Path(str(module.__file__)).parent)
    files = [file for file in sorted(folders[0].rglob(pattern)) if file.is_file() and "__pycache__" not in file.parts]
    return _hash_of_files(files, folders[0])


def _hash_of_files(files: Sequence[Path], folder: Path) -> str:
    return _hash_of_lines(
        f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files
    )


def _recorded_hash(distribution: importlib_metadata.Distribution) -> str:
    """The hash of a wheel's own files, by the hashes that its installer recorded. Empty if it recorded none."""
    record = distribution.read_text("RECORD") or ""
    own = [line for line in record.splitlines() if not line.startswith("..") and ".dist-info/" not in line]
    return _hash_of_lines(sorted(line for line in own if "__pycache__" not in line)) if own else ""


def _hash_of_lines(lines: Iterable[str]) -> str:
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"
