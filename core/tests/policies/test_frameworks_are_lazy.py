"""Frameworks are imported where they are used, and one that is missing is named with the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("module", ["hookline.policies", "hookline.rollout", "hookline.hooks", "hookline.rollout.text"])
def test_importing_it_imports_no_framework(module: str) -> None:
    frameworks = ("torch", "jax", "mlx", "numpy", "gymnasium", "gymnax", "transformers", "peft")
    assert run(f"import sys, {module}; print(*[f for f in {frameworks} if f in sys.modules])") == ""


def test_a_rollout_worker_runs_where_torch_cannot_be_imported() -> None:
    code = """
import sys
sys.modules["torch"] = None
from hookline.rollout import RolloutWorker, RolloutWorkerConfig
worker = RolloutWorker(RolloutWorkerConfig(num_environments=2, steps_per_rollout=4))
worker.run(steps=1)
print(worker.step)
"""
    assert run(code) == "1"


@pytest.mark.parametrize(
    ("module", "code", "message"),
    [
        (
            "jax",
            "from hookline.rollout import RolloutWorker; RolloutWorker()",
            'a rollout worker needs jax, which is not installed: pip install "hookline[jax]"',
        ),
        (
            "torch",
            "from hookline.policies import *; MLPPolicy(4, Discrete(2)).torch_module()",
            'training a policy needs torch, which is not installed: pip install "hookline[torch]"',
        ),
        (
            "transformers",
            "from hookline.policies import *; HuggingFacePolicy('folder').torch_module()",
            'a Hugging Face policy needs transformers, which is not installed: pip install "hookline[hf]"',
        ),
        (
            "peft",
            "from hookline.policies import *; from hookline.policies.huggingface_torch import add_adapters; "
            "add_adapters(None, LoraConfig(), seed=0)",
            '`lora` needs peft, which is not installed: pip install "hookline[hf]"',
        ),
    ],
)
def test_a_missing_framework_is_an_error_that_names_the_extra(module: str, code: str, message: str) -> None:
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == {module!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Missing())
from hookline.policies import MissingExtraError
try:
    exec({code!r})
except MissingExtraError as error:
    assert str(error) == {message!r}, str(error)
    print("named")
"""
    assert run(program) == "named"
