"""The keys of `[tool.hookline]`, validated by pydantic. Imported only where there are settings to validate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from hookline.errors import ConfigFault
from hookline.option_models import validation_faults

__all__ = ["Schema", "read_table"]


class Schema(BaseModel):
    """The keys of `[tool.hookline]`."""

    disable: list[str] = []
    """Plugins that are not imported, by name, or by `name@distribution` if two distributions have the name."""
    allow: list[str] | None = None
    """If given, the only plugins that are imported."""
    load: list[str] = []
    """Plugins of the project: `module:Class` or `path/to/file.py:Class`, or `name=module:Class` with another name."""
    hooks: list[dict[str, Any]] = []
    """Hooks of any style: `use` is the class, `name` may be left out, other keys are arguments of the constructor."""
    required: list[str] = []
    """Plugins without which no run starts, with versions if they matter: `checkpoint>=0.1`."""
    strict: bool | None = None
    """Do not start a run if a plugin fails to import, or if something differs from `hookline.lock`."""
    background_capacity: Annotated[int, Field(ge=1)] | None = None
    """Calls that may wait for each plugin. 256 by default."""
    drain_seconds: Annotated[float, Field(ge=0)] | None = None
    """How long the end of a run waits for background calls. 5 by default."""
    plugins: dict[str, dict[str, Any]] = {}
    """The options of each plugin, by its name."""


def read_table(table: Any) -> tuple[Mapping[str, Any], list[ConfigFault]]:
    """The settings in a table, or all its faults, each with its key."""
    try:
        return Schema.model_validate(table, extra="forbid").model_dump(exclude_unset=True), []
    except ValidationError as error:
        return {}, validation_faults(error, Schema)
