"""The README of each tracker has all its options."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("tracker", ["mlflow", "tensorboard", "trackio", "wandb"])
def test_every_option_is_in_its_table_with_its_default(tracker: str) -> None:
    readme = (ROOT / "plugins" / tracker / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", readme, re.MULTILINE))
    options = import_module(f"hookline_{tracker}").Options
    assert rows.keys() == {field.name for field in fields(options)}
    for field in fields(options):
        if field.default is not None:
            assert rows[field.name] == f'`"{field.default}"`'
