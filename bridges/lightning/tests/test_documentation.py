"""The script of docs/lightning.md runs as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "lightning.md"
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the tests lie apart from the page, as where wheels are tried")
def test_the_script_of_the_documentation_is_a_run(tmp_path: Path) -> None:
    _, _, rest = DOCUMENT.read_text().partition("```python\n")
    script = tmp_path / "train.py"
    script.write_text(rest.partition("```")[0])
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "runs" / "lightning-0" / "stats.sqlite").exists()


@pytest.mark.skipif(not README.exists(), reason="the tests lie apart from the README, as where wheels are tried")
def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch import Trainer

    from hookline_lightning import HooklineCallback

    monkeypatch.chdir(tmp_path)
    _, _, rest = README.read_text().partition("```python\n")
    names = {"Trainer": Trainer, "NanGuard": type("NanGuard", (), {})}
    exec(rest.partition("```")[0], names)
    assert [type(own) for own in names["trainer"].callbacks].count(HooklineCallback) == 1
