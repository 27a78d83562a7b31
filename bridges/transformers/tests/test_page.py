"""The page of documentation is true: its script runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_trainers import Recorded

PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the tests lie apart from the page, as where wheels are tried")
def test_the_whole_script_trains_and_leaves_a_run(folder: Path) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(script, str(PAGE), "exec"), {"__name__": "__main__"})
    assert Recorded(folder / "runs" / "sums")["train/reward"].keys() == {1, 2, 3, 4}
