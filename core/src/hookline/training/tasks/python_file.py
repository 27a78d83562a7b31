"""Import a Python file by its path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from hookline.plugin_manager.faults import exits_as_errors

__all__ = ["import_file"]


def import_file(file: Path) -> ModuleType:
    """The module of a file, run anew."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses and pickles look a class's module up there
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that it can import modules of its folder, as a script can
    with exits_as_errors(f"the file {str(file)!r}"):
        spec.loader.exec_module(module)
    return module
