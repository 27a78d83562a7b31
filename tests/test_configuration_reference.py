"""docs/configuration.md is made of the option models, and is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hookline.importing import import_file

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_configuration_reference_is_current() -> None:
    tool = import_file(ROOT / "tools" / "configuration_reference.py")
    assert tool.reference() + "\n" == PAGE, "run `make docs`"


def test_every_setting_and_every_option_of_a_plugin_says_what_it_is() -> None:
    settings, _, configs = PAGE.partition("## The config of a run")
    assert configs
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", settings, re.MULTILINE)
    assert len(rows) > 50
    assert [name for name, text in rows if not text.strip()] == []
