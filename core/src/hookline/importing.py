"""Import what may be missing: optional packages, and what a config names.

`require` imports a package of an extra. `NamedObject` is `path/to/file.py:NAME` or `package.module:NAME` in a config.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hookline.errors import HooklineError, did_you_mean
from hookline.plugin_manager.faults import exits_as_errors

__all__ = ["MissingExtraError", "NamedObject", "NotFoundError", "import_file", "require"]

EXTRAS: Final = {
    "ahocorasick_rs": "rewards",
    "cloudpickle": "jax",
    "httpcore": "http",
    "jax": "jax",
    "mlx": "mlx",
    "mlx_lm": "mlx-lm",
    "numpy": "jax",
    "peft": "hf",
    "safetensors": "hf",
    "tenacity": "http",
    "torch": "torch",
    "transformers": "hf",
}
"""The extra of `hookline` that installs each package."""

_imported: Final[dict[str, tuple[Path, int]]] = {}
"""The file of each module that `import_file` has made, and the time of its last change."""


class MissingExtraError(HooklineError, ImportError):
    """An optional package is not installed, or cannot be imported."""


def require(module: str, purpose: str, extra: str | None = None, distribution: str = "hookline") -> Any:
    """Import a module of an optional package.

    :param purpose: what needs it, as the subject of a sentence: "a rollout worker".
    :param extra: the extra to name in the error, if several install the package.
    :param distribution: the distribution that the extra belongs to.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name in (package, module)
        state = "is not installed" if is_absent else f"is installed but cannot be imported ({error})"
        command = f'pip install "{distribution}[{extra or EXTRAS[package]}]"'
        raise MissingExtraError(f"{purpose} needs {package}, which {state}: {command}", name=error.name) from error


class NotFoundError(HooklineError, ImportError):
    """What a config names is not there. The message says where it was looked for."""


def import_file(file: Path) -> ModuleType:
    """The module of a file. It is run once, and anew when the file has changed."""
    name, path = file.stem, file.resolve()
    as_it_is = path, path.stat().st_mtime_ns
    known = sys.modules.get(name)
    if known is not None and _imported.get(name) == as_it_is:
        return known
    if known is not None and name not in _imported:
        raise NotFoundError(
            f"the file {str(file)!r} cannot be imported: another module {name!r} is imported already, from "
            f"{getattr(known, '__file__', None) or 'Python itself'}: rename the file"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look a class's module up there
    _imported[name] = path, 0
    _search_first(path.parent)  # so that it can import modules of its folder, as a script can
    with exits_as_errors(f"the file {str(file)!r}"):
        spec.loader.exec_module(module)
    _imported[name] = as_it_is
    return module


@dataclass(frozen=True)
class NamedObject:
    """An object named by a config. Without a name, it is the module itself."""

    module: str
    """The dotted name of a module, or the path of a file."""
    attribute: str
    folder: Path
    """Paths are relative to it, and modules are looked for in it first."""

    @classmethod
    def parse(cls, text: str, folder: Path) -> NamedObject | None:
        """`module:NAME`, `file.py:NAME`, or either without `:NAME`. None if the text is none of them."""
        path, colon, attribute = text.rpartition(":")
        module = path if colon else text
        is_name = attribute.isidentifier() if colon else True
        is_module = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
        return cls(module, attribute if colon else "", folder) if is_name and is_module else None

    @property
    def file(self) -> Path | None:
        """The path of a file; None if a module is named."""
        return self.folder / self.module if self.module.endswith(".py") else None

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    def load(self) -> Any:
        """Import the object. Raises `NotFoundError` if there is none, and what the module raises itself."""
        module = self._module()
        if not self.attribute:
            return module
        if not hasattr(module, self.attribute):
            own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
            nearest = did_you_mean(self.attribute, own) or (f"; it has {', '.join(own)}" if own else "")
            raise NotFoundError(f"there is no {self.attribute!r} in {self.module!r} ({module.__file__}){nearest}")
        return getattr(module, self.attribute)

    def _module(self) -> ModuleType:
        if self.file is not None:
            if not self.file.is_file():
                raise NotFoundError(f"there is no file {str(self.file)!r}")
            return import_file(self.file)
        _search_first(self.folder)
        importlib.invalidate_caches()  # the folder may have been listed before the module was written
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.module}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports another that is not
            *others, packages = dict.fromkeys([str(self.folder), *_python_path(), sysconfig.get_path("purelib")])
            raise NotFoundError(
                f"there is no module {error.name!r}: looked in {', '.join(others)} and in {packages}. "
                "A file is named by its path, as in path/to/file.py:NAME"
            ) from None


def _python_path() -> list[str]:
    """The folders of PYTHONPATH that modules are looked for in."""
    folders = [str(Path.cwd() / folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return [folder for folder in folders if folder in sys.path]


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
