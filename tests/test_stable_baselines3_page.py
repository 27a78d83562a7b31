"""The script of docs/stable-baselines3.md, with all plugins that are installed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "stable-baselines3.md"
README = Path(__file__).parents[1] / "bridges" / "sb3" / "README.md"


def test_the_script_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = re.search(r"```python\n(# train\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert script is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_OPTIONS", "evaluation.n_examples=2")
    short = script[1].replace("TIMESTEPS = 50_000", "TIMESTEPS = 2_048")
    assert short != script[1]
    exec(compile(short, "train.py", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "runs" / "cartpole" / "stats.sqlite").exists()
    exec(compile(short, "train.py", "exec"), {"__name__": "__main__"})  # which goes on with the run, now complete


def test_the_script_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    short = script.replace("seed=1", "seed=1, n_steps=256").replace("100_000", "256")
    assert "learn(256" in short
    exec(compile(short, "README.md", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "runs" / "cartpole" / "stats.sqlite").exists()
