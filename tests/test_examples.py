"""Every example runs as its own text says, and does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"
ELSEWHERE = {
    "calculator_tool.py",
    "custom_loggers_and_hooks.py",
    "guess_the_number.py",
    "own_loop.py",
    "tao_sft_example.py",
}
"""Those with tests of their own."""

RUN = {
    "custom_hook.py": ([sys.executable, "{file}", "25"], r"stopped early: a mean return of "),
    "custom_verifier.py": ([sys.executable, "{file}"], "privacy: gives away a phone number"),
    "custom_engine.py": ([sys.executable, "{file}"], "8 steps of GRPO, sampled by PlainEngine"),
    "custom_task.py": (["hookline", "train", "{file}:pendulum", "--epochs", "1"], "pendulum"),
    "integrated_reward_example.py": ([sys.executable, "{file}"], "accepted 2 of 4; mean reward 0.48"),
    "judge.py": ([sys.executable, "{file}"], "a judge that learned:        [1.0, 0.0, 0.0, 1.0]"),
    "make_tiny_model.py": ([sys.executable, "{file}", "tiny"], "made tiny"),
    "own_policy.py": ([sys.executable, "{file}", "9"], "trained: body.0.weight, body.0.bias"),
    "rollout_integration_example.py": ([sys.executable, "{file}"], "32 episodes, 18 accepted, 14 rejected"),
}


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*RUN, *ELSEWHERE}


@pytest.mark.parametrize("name", RUN)
def test_an_example_runs_and_says_what_it_found(name: str, tmp_path: Path) -> None:
    if name == "judge.py":
        pytest.importorskip("mlx_lm")
    command, printed = RUN[name]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [part.format(file=EXAMPLES / name) for part in command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environ,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert printed in result.stdout
    if name == "judge.py":  # what is no verdict is no reward
        assert "a judge that knows nothing:  [nan, nan, nan, nan]" in result.stdout
        assert "ValueError: episode 0: the judge says '" in result.stdout
