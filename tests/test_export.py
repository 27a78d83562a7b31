"""`hookline export`: a folder that `from_pretrained` loads, equal to the run's policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from hookline import PluginManager
from hookline.cli import main
from hookline.policies import HuggingFacePolicy, TransformerPolicy
from hookline.testing.tiny_models import tiny_model
from hookline.training import LoraConfig, OptimizerConfig, SupervisedConfig, Trainer, TrainerConfig
from hookline_checkpoint import Checkpoint, Options

EXAMPLES = [{"tokens": [4 + (i * k) % 200 for k in range(1, 6 + i % 7)]} for i in range(1, 13)]
TOKENS = torch.arange(4, 24)[None]


def trained(run_dir: Path, policy: Any = None, *, epochs: int = 2, **fields: Any) -> Trainer:
    plugins = PluginManager()
    plugins.register(Checkpoint(Options(every=1, keep_last=5), plugins.emit), "checkpoint")
    config = TrainerConfig(
        epochs=epochs,
        run_dir=run_dir,
        optimizer=OptimizerConfig(learning_rate=5e-3),
        supervised=SupervisedConfig(batch_size=4),
        **fields,
    )
    trainer = Trainer(config, policy=policy, dataset=EXAMPLES, plugins=plugins)
    trainer.train()
    return trainer


def export(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", *arguments])
    assert end.value.code == 0


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(TOKENS).logits


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_an_exported_model_is_the_runs_policy(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tiny_model(tmp_path / "base", family)
    trainer = trained(tmp_path / "run", str(base))
    export(str(tmp_path / "run"), str(tmp_path / "out"))
    assert "with its tokenizer" in capsys.readouterr().out
    found = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    assert torch.equal(found, logits(trainer.policy.model))
    assert not torch.equal(found, logits(AutoModelForCausalLM.from_pretrained(base)))
    one, other = (AutoTokenizer.from_pretrained(folder) for folder in (base, tmp_path / "out"))
    assert one.get_vocab() == other.get_vocab()


def test_an_earlier_checkpoint_can_be_exported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run, str(tiny_model(tmp_path / "base")))
    export(str(run), str(tmp_path / "out"), "--checkpoint", "epoch-000000")
    found = load_file(tmp_path / "out" / "model.safetensors")
    first, last = (load_file(run / "checkpoints" / f"epoch-00000{epoch}" / "policy.safetensors") for epoch in (0, 1))
    assert all(torch.equal(found[name], first[name]) for name in first)
    assert not any(torch.equal(found[name], last[name]) for name in last)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did")  # of peft, for experts
@pytest.mark.parametrize(
    ("family", "changes"),
    [("qwen3", {}), ("gpt2", {}), ("mixtral", {"num_key_value_heads": 2, "num_local_experts": 4})],
)
def test_adapters_are_exported_as_peft_saves_them_or_merged(
    family: str, changes: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny_model(tmp_path / "base", family, **changes)
    trainer = trained(tmp_path / "run", policy=str(base), lora=LoraConfig(r=2, alpha=16))
    expected = logits(trainer.policy.model)
    export(str(tmp_path / "run"), str(tmp_path / "adapters"))
    assert f"the adapters for the base model {base}" in capsys.readouterr().out
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters")
    assert torch.equal(logits(loaded), expected)
    export(str(tmp_path / "run"), str(tmp_path / "merged"), "--merge")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, atol=1e-5, rtol=1e-4)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert AutoTokenizer.from_pretrained(tmp_path / "adapters").encode("12+34=")


@pytest.mark.filterwarnings(
    "ignore:Model (has|with) `tie_word_embeddings=True`", "ignore:Setting `save_embedding_layers`"
)
@pytest.mark.parametrize(
    "lora",
    [
        LoraConfig(r=2, alpha=16, target_modules=("q_proj",), options={"use_rslora": True}),
        LoraConfig(r=2, alpha=16, target_modules=("k_proj", "q_proj"), options={"use_dora": True}),
        LoraConfig(r=2, alpha=16, target_modules=("lm_head", "q_proj")),
        LoraConfig(r=2, alpha=16, target_modules=("embed_tokens",)),
    ],
)
def test_adapters_of_all_kinds_are_exported_where_layers_share_their_weights(lora: LoraConfig, tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=True)
    own = HuggingFacePolicy(str(base), lora).torch_module().model
    trainer = trained(tmp_path / "run", policy=own)
    assert trainer.config.lora == lora
    expected = logits(trainer.policy.model)
    for how in ([], ["--merge"]):
        folder = tmp_path / f"exported{len(how)}"
        export(str(tmp_path / "run"), str(folder), *how)
        loaded = AutoModelForCausalLM.from_pretrained(folder if how else base)
        loaded = loaded if how else PeftModel.from_pretrained(loaded, folder)
        torch.testing.assert_close(logits(loaded), expected, atol=1e-5, rtol=1e-4)


def test_a_policy_in_shards_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline_checkpoint.snapshot.LARGEST_SHARD", 100_000)
    trainer = trained(tmp_path / "run", str(tiny_model(tmp_path / "base")))
    (path,) = (tmp_path / "run").glob("checkpoints/epoch-000001")
    assert len(list(path.glob("policy-*.safetensors"))) > 1
    export(str(tmp_path / "run"), str(tmp_path / "out"))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(trainer.policy.model))


def fails(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit):
        main(["export", *map(str, arguments)])
    return capsys.readouterr().err


def test_a_generation_config_that_contradicts_itself_is_an_error_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny_model(tmp_path / "base")
    trained(tmp_path / "run", str(base), epochs=1)
    (base / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.5}')
    found = fails(capsys, tmp_path / "run", tmp_path / "out")
    assert f"{tmp_path / 'out'} cannot be written: " in found
    assert "temperature" in found
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_is_an_error_that_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert f"{run} holds no run" in fails(capsys, run, out)
    trained(run, str(tiny_model(tmp_path / "base")))
    assert "has no checkpoint 'epoch-000009'; it has" in fails(capsys, run, out, "--checkpoint", "epoch-000009")
    out.mkdir()
    (out / "file").touch()
    assert f"{out} is not an empty folder: choose another one" in fails(capsys, run, out)
    (out / "file").unlink()
    weights = run / "checkpoints" / "epoch-000001" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert "policy.safetensors is damaged" in fails(capsys, run, out)
    assert list(out.iterdir()) == []
    for path in run.glob("checkpoints/*/manifest.json"):
        path.unlink()
    assert f"{run} has no checkpoint" in fails(capsys, run, out)
    own = TransformerPolicy(vocabulary=300, width=16, layers=1, heads=2, context=32)
    trained(tmp_path / "small", own)
    assert "has no Hugging Face policy" in fails(capsys, tmp_path / "small", out)
