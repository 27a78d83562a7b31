"""What `hookline.rewards` needs, and what it says where that is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_rewards_imports_no_framework_and_no_verifier() -> None:
    names = ("mlx", "torch", "jax", "httpcore", "httpx", "tenacity", "hookline_verifiers")
    result = run(f"import sys, hookline.rewards; print([n for n in {names!r} if n in sys.modules])")
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("missing", ["numpy", "ahocorasick_rs"])
def test_a_missing_package_names_the_extra_that_has_it(missing: str) -> None:
    result = run(f"import sys; sys.modules[{missing!r}] = None; import hookline.rewards")
    assert f"hookline.rewards needs {missing}" in result.stderr
    assert 'pip install "hookline[rewards]"' in result.stderr


@pytest.mark.parametrize("missing", ["httpcore", "tenacity"])
def test_only_an_external_reward_model_needs_a_client(missing: str) -> None:
    result = run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from hookline.rewards import RewardConfig, create_rollout_reward_processor as create\n"
        "print(create(RewardConfig()).process_episode_rewards([{'response': 'fine'}]).shape)\n"
        "create(RewardConfig(external_rm_url='http://localhost/'))"
    )
    assert result.stdout.strip() == "(1,)"
    assert f"an external reward model needs {missing}" in result.stderr
    assert 'pip install "hookline[rewards]"' in result.stderr
