"""What differs between the configuration that a checkpoint was saved with and that of the run that goes on from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["as_plain_data", "config_differences"]

ABSENT: Final = "absent"

IRRELEVANT: Final = ("trainer.run_dir", "trainer.resume", "trainer.task")
"""What may differ: the run's folder may have been moved, and it was not resumed when it began. The task is in the
configuration a second time."""


def as_plain_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON holds it in every language; what JSON lacks is there as text."""
    plain: dict[str, Any] = json.loads(json.dumps(config, default=repr), parse_constant=str)
    return plain


def config_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The value of each differing key, by its path, in the checkpoint and in the run."""
    before, now = dict(_leaves(saved)), dict(_leaves(as_plain_data(current)))
    return {
        key: (before.get(key, ABSENT), now.get(key, ABSENT))
        for key in sorted(before.keys() | now.keys())
        if key not in IRRELEVANT and before.get(key, ABSENT) != now.get(key, ABSENT)
    }


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each value that is no table, as JSON shows it, by its path."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), json.dumps(value)
