"""The README is true: its plugin works, and so do its commands. tests/test_site.py checks its links."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(PLUGIN,) = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_plugin_in_ten_lines_does_what_it_says() -> None:
    from hookline import PluginManager
    from hookline_hookspecs import TrainerState

    namespace: dict[str, type] = {}
    exec(PLUGIN, namespace)
    manager = PluginManager()
    manager.register(namespace["FiniteLoss"]())
    manager.emit.post_training_step(state=TrainerState(step=10, loss_stats={"train/loss": 0.5}), report_data={})
    with pytest.raises(FloatingPointError, match="not finite at step 20"):
        manager.emit.post_training_step(
            state=TrainerState(step=20, loss_stats={"train/loss": float("nan")}), report_data={}
        )


def test_the_command_trains_with_the_plugin_also_where_all_of_this_repository_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from hookline.cli import main

    (file,) = re.findall(r"Save it as `(\w+\.py)`", README)
    (command,) = re.findall(r"`hookline (train cartpole -p [^`]+)`", README)
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text(PLUGIN)
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--epochs", "2", "--run-dir", "run"])
    assert not ended.value.code
    plugins = json.loads((tmp_path / "run" / "config.json").read_text())["plugins"]
    assert plugins["finite-loss"]["load"]["module"] == file


@pytest.mark.skipif(sys.prefix != str(ROOT / ".venv"), reason="make would set up an environment of its own")
@pytest.mark.parametrize(
    ("target", "arguments", "expected"),
    [
        ("demo", "--show-config", 'task = "arithmetic"'),  # the training itself is that of any run
        ("test", "--collect-only -q hookspecs/tests/test_markers.py", "test_markers.py"),
    ],
)
def test_the_two_commands_of_make_work(target: str, arguments: str, expected: str) -> None:
    assert f"\nmake {target} " in README
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["make", target, f"ARGS={arguments}"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert expected in result.stdout


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 60, "what is longer is a page in docs/"
