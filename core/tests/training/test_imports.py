"""What is imported, and what is not."""

from __future__ import annotations

import subprocess
import sys

SUPERVISED = """
from hookline.training import Trainer, TrainerConfig
from hookline.policies import TransformerPolicy
policy = TransformerPolicy(vocabulary=10, width=16, layers=1, heads=2, context=8)
Trainer(TrainerConfig(epochs=1), policy=policy, dataset=[{"tokens": [2, 3, 4]}]).train()
"""

ROLLOUTS = """
from hookline.training import RolloutConfig, Trainer, TrainerConfig
Trainer(TrainerConfig(epochs=1, rollout=RolloutConfig(4, 8, minibatches=2, update_epochs=1))).train()
"""

FORBIDDEN = """
import sys
forbidden = ("wandb", "sqlite3", "httpx", "requests", "aiohttp", "http", "urllib.request",
             "hookline_checkpoint", "hookline_evaluation", "hookline_metrics", "hookline_status")
print(*[name for name in sys.modules if name not in before and name.startswith(forbidden)])
"""


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_training_on_a_dataset_loads_no_module_that_is_not_about_training() -> None:
    # torch itself brings in urllib: what counts is what the trainer adds.
    assert run(f"import sys, torch; before = set(sys.modules)\n{SUPERVISED}{FORBIDDEN}") == ""


def test_training_by_rollouts_loads_no_module_that_is_not_about_training() -> None:
    frameworks = "import sys, torch, jax, gymnasium; before = set(sys.modules)\n"
    assert run(f"{frameworks}{ROLLOUTS}{FORBIDDEN}") == ""


def test_training_on_a_dataset_does_not_load_jax() -> None:
    assert run(f"{SUPERVISED}\nimport sys; print('jax' in sys.modules)") == "False"


def test_training_does_not_load_the_compiler_of_torch() -> None:
    # It takes longer to import than a small run takes to train.
    assert run(f"{ROLLOUTS}\nimport sys; print('torch._dynamo' in sys.modules)") == "False"


def test_importing_hookline_its_session_or_its_launcher_loads_no_framework() -> None:
    code = (
        "import sys, hookline, hookline.cli, hookline.session, hookline.launcher\n"
        "print(*[name for name in ('torch', 'jax', 'mlx', 'numpy') if name in sys.modules])"
    )
    assert run(code) == ""
