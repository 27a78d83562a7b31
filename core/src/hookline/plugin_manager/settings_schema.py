"""The keys of `[tool.hookline]`, validated by pydantic. Imported only where there are settings to validate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from hookline.errors import ConfigFault
from hookline.pydantic_faults import validation_faults

__all__ = ["Schema", "read_table"]


class Schema(BaseModel):
    """The keys of `[tool.hookline]`."""

    disable: list[str] = []
    allow: list[str] | None = None
    load: list[str] = []
    hooks: list[dict[str, Any]] = []
    required: list[str] = []
    strict: bool | None = None
    background_capacity: Annotated[int, Field(ge=1)] | None = None
    drain_seconds: Annotated[float, Field(ge=0)] | None = None
    plugins: dict[str, dict[str, Any]] = {}


def read_table(table: Any) -> tuple[Mapping[str, Any], list[ConfigFault]]:
    """The settings in a table, or all its faults, each with its key."""
    try:
        return Schema.model_validate(table, extra="forbid").model_dump(exclude_unset=True), []
    except ValidationError as error:
        return {}, validation_faults(error, Schema)
