"""The docstring of a hookspec, taken apart: every event says the same things in the same order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EventContract", "parse_contract"]

_LABEL = re.compile(r"(When|Emitted by|Where|Args|Returns|Added):\s*(.*)")
_ARGUMENT = re.compile(r"    (\w+): (.*)")


@dataclass(frozen=True)
class EventContract:
    """What an event's docstring promises. A field is empty when the docstring does not say it."""

    summary: str = ""
    when: str = ""
    emitted_by: str = ""
    where: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    added: str = ""


def parse_contract(doc: str) -> EventContract:
    """Read the labelled lines of a docstring."""
    summary, _, rest = doc.partition("\n")
    found: dict[str, str] = {}
    arguments: dict[str, str] = {}
    for line in rest.splitlines():
        label = _LABEL.fullmatch(line)
        argument = _ARGUMENT.fullmatch(line)
        if label:
            found[label[1]] = label[2]
        elif argument:
            arguments[argument[1]] = argument[2]
    return EventContract(
        summary=summary,
        when=found.get("When", ""),
        emitted_by=found.get("Emitted by", ""),
        where=found.get("Where", ""),
        arguments=arguments,
        returns=found.get("Returns", ""),
        added=found.get("Added", ""),
    )
