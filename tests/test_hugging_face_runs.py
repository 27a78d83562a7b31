"""The run files of `examples/` train the tiny model that an example makes, from its folder to another one."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("transformers")
pytest.importorskip("hookline_checkpoint")
pytest.importorskip("hookline_evaluation")

EXAMPLES = Path(__file__).parents[1] / "examples"
HOOKLINE = str(Path(sys.executable).with_name("hookline"))
SMALL = {
    "sft_hf.toml": ["--epochs", "1"],
    "grpo_hf.toml": [
        *("--epochs", "2", "--set", "warm_start.until={addition-2 = 0.0}", "--set", "warm_start.steps_per_epoch=2"),
        *("--set", "warm_start.n_examples=4", "--set", "rollout.num_environments=4", "--set", "rollout.minibatches=2"),
        *("--set", "rollout.rollouts_per_epoch=1", "-o", "evaluation.n_examples=4", "-o", "evaluation.every=1"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name in SMALL:
        shutil.copy(EXAMPLES / name, folder)
    make = [sys.executable, EXAMPLES / "make_tiny_model.py", "tiny-qwen3"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    sums = folder / "tiny-qwen3" / "sums.jsonl"
    sums.write_text("\n".join(sums.read_text().splitlines()[-512:]))  # a short epoch
    return folder


def hookline(*arguments: str, cwd: Path) -> str:
    result = subprocess.run([HOOKLINE, *arguments], capture_output=True, text=True, cwd=cwd, timeout=500, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", SMALL)
def test_an_example_trains_the_tiny_model_and_is_resumed_and_evaluated_without_its_file(
    name: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copy(folder / name, tmp_path / name)
    text = (tmp_path / name).read_text().replace('"tiny-qwen3', f'"{folder}/tiny-qwen3')
    (tmp_path / name).write_text(text)
    hookline("train", name, "--run-dir", "run", *SMALL[name], cwd=tmp_path)
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["task"] == name.partition("_")[0]
    assert recorded["trainer"]["policy"] == str(folder / "tiny-qwen3")
    (tmp_path / name).unlink()
    said = hookline("train", "--run-dir", "run", "--resume", "--set", "epochs=3", cwd=tmp_path)
    assert "run: 3 epochs" in said
    if name == "grpo_hf.toml":
        found = json.loads(hookline("evaluate", "run", "--n-examples", "4", "--json", cwd=tmp_path))
        assert math.isfinite(found["scores"]["eval/addition-2/success_rate"])
        assert "with its tokenizer" in hookline("export", "run", "my-model", cwd=tmp_path)
