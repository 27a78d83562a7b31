"""The script of docs/lightning.md runs as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "lightning.md"


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the tests lie apart from the page, as where wheels are tried")
def test_the_script_of_the_documentation_is_a_run(tmp_path: Path) -> None:
    _, _, rest = DOCUMENT.read_text().partition("```python\n")
    script = tmp_path / "train.py"
    script.write_text(rest.partition("```")[0])
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "runs" / "lightning-0" / "stats.sqlite").exists()
