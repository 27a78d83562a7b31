"""A listing of the installed plugins: state, events, order and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from hookline.plugin_manager.discovery import PluginRecord
from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs.redaction import redact

__all__ = ["PluginListing", "list_plugins"]


@dataclasses.dataclass(frozen=True)
class PluginListing:
    """One installed plugin."""

    name: str
    distribution: str
    version: str
    state: str
    """`active`, `disabled`, `failed` or `quarantined`."""
    reason: str
    """Why it is not active."""
    events: list[str]
    """The events that it implements; empty for a plugin that is not imported."""
    schedules: dict[str, str]
    """Its schedule in each event that has one."""
    after: list[str]
    before: list[str]
    requires: list[str]
    options: dict[str, Any]
    """Its options with defaults, and its schedule and error policy from the settings. Secrets are redacted."""


def list_plugins(manager: PluginManager, records: Iterable[PluginRecord]) -> list[PluginListing]:
    """All installed plugins, in the order of the records."""
    return [_listing(manager, record) for record in records]


def _listing(manager: PluginManager, record: PluginRecord) -> PluginListing:
    state, reason = record.state, record.reason
    implementations = manager.implementations_of(record.name) if state == "active" else []
    quarantined = manager.faults.quarantined.get(record.name)
    return PluginListing(
        name=record.name,
        distribution=record.installed.distribution,
        version=record.installed.version,
        state="quarantined" if quarantined else state,
        reason=quarantined or reason,
        events=list(dict.fromkeys(own.event.name for own in implementations)),
        schedules={own.event.name: str(own.schedule) for own in implementations if own.schedule is not None},
        after=list(record.constraints.after),
        before=list(record.constraints.before),
        requires=list(record.constraints.requires),
        options=to_jsonable_python(redact({**_as_dictionary(record.options), **record.overrides}), fallback=repr),
    )


def _as_dictionary(options: Any) -> dict[str, Any]:
    """Options by name. Secrets keep their pydantic types, so that `redact` recognises them."""
    if isinstance(options, BaseModel):
        return options.model_dump()
    return dataclasses.asdict(options) if dataclasses.is_dataclass(options) and not isinstance(options, type) else {}
