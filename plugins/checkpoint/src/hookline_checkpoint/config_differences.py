"""Compares the config of a checkpoint with the config of the run that resumes from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["as_plain_data", "config_differences"]

ABSENT: Final = "absent"

IRRELEVANT: Final = ("trainer.run_dir", "trainer.resume", "trainer.task")
"""Keys that may differ: the run's folder may have been moved, and the first start did not resume. The task is compared
by another key."""


def as_plain_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as strict JSON data. Values that JSON does not have become text."""
    plain: dict[str, Any] = json.loads(json.dumps(config, default=repr), parse_constant=str)
    return plain


def config_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Each key that differs, as a path, with its value in the checkpoint and in the run."""
    before, now = dict(_leaves(saved)), dict(_leaves(as_plain_data(current)))
    return {
        key: (before.get(key, ABSENT), now.get(key, ABSENT))
        for key in sorted(before.keys() | now.keys())
        if key not in IRRELEVANT and before.get(key, ABSENT) != now.get(key, ABSENT)
    }


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each value that is not a mapping, as JSON, with its path."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), json.dumps(value)
