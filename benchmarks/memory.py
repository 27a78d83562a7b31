"""The peak of memory of training a model of 100 million parameters, as a multiple of its weights.

    python benchmarks/memory.py [--json FILE]

A random qwen3 in float32 takes ten steps of two short responses, with a checkpoint after each. Training needs the
weights once, the gradients once, Adam's moments twice, and a checkpoint's copy of weights and moments three times: the
copy is written to disk while training goes on. That is seven times the weights, or four without checkpoints. What the
imports take before there is a model is left out and shown besides. Each case is a process of its own. It takes about
five minutes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from measuring import Table, describe_machine, json_option, report

STEPS: Final = 10


class Case(NamedTuple):
    loss: str
    checkpoints: bool = True
    lora: bool = False
    engine: str = "auto"

    def __str__(self) -> str:
        lora = " of adapters" if self.lora else ""
        engine = "" if self.loss == "sft" else f", {self.engine} engine"
        return f"{self.loss}{lora}{engine}, {'a checkpoint each step' if self.checkpoints else 'no checkpoints'}"


CASES: Final = (
    Case("sft"),
    Case("grpo", engine="jax"),
    Case("grpo", engine="jax", checkpoints=False),
    Case("grpo", engine="transformers"),
    Case("grpo", engine="jax", lora=True),
)


def make_model(folder: Path) -> None:
    from hookline.testing.tiny_models import tiny_model, tiny_tokenizer

    tokenizer: Any = tiny_tokenizer(folder)
    # A vocabulary as large as the model's, as real tokenizers have.
    tokenizer.add_tokens([f"<unused-{number}>" for number in range(16384 - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    tiny_model(
        folder,
        "qwen3",
        spread=1.0,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        rope_theta=1e4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def train(case: Case, folder: Path) -> dict[str, float]:
    import jax.numpy
    import peft
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - the model's imports are not what is measured

    from hookline import PluginManager
    from hookline.rollout import CurriculumConfig, Lesson
    from hookline.rollout.text import TextProblem, TextTask
    from hookline.training import LoraConfig, OptimizerConfig, RolloutConfig, SupervisedConfig, Trainer, TrainerConfig
    from hookline_checkpoint import Checkpoint, Options

    jax.numpy.zeros(1).block_until_ready()
    del peft
    before = peak()
    plugins = PluginManager()
    if case.checkpoints:
        plugins.register(Checkpoint(Options(every=1, keep_last=1), plugins.emit), "checkpoint")
    supervised = case.loss == "sft"
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        config = TrainerConfig(
            epochs=STEPS,
            run_dir=Path(run_dir) / "run",
            policy=str(folder),
            lora=LoraConfig() if case.lora else None,
            optimizer=OptimizerConfig("adamw", learning_rate=1e-5),
            rollout=RolloutConfig(
                num_environments=1, samples_per_prompt=2, minibatches=1, update_epochs=1, engine=case.engine
            ),
            supervised=SupervisedConfig(batch_size=2),
        )
        task = TextTask([TextProblem("12+34=", "46")], lambda _, response: float(len(response)), max_new_tokens=8)
        lessons = CurriculumConfig([Lesson("sums", task)], micro_eval_frequency=None, eval_frequency=None)
        dataset = [{"tokens": list(range(10, 24))}] * 2 if supervised else None
        trainer = Trainer(config, None if supervised else lessons, dataset=dataset, plugins=plugins)
        weights = sum(own.numel() * own.element_size() for own in trainer.policy.parameters())
        trainer.train()
    assert trainer.state.step == STEPS
    return {"weights": weights, "before": before, "peak": peak()}


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(train(CASES[int(sys.argv[2])], Path(sys.argv[3]))))
        return
    json_file = json_option(__doc__)
    table = Table(
        "peak of memory, 100 M parameters, ten steps",
        "none; seven times the weights are needed with checkpoints, and four without",
        ("case", "weights", "imports", "peak", "peak without imports / weights"),
    )
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        for number, case in enumerate(CASES):
            command = [sys.executable, __file__, "--case", str(number), folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            ratio = (found["peak"] - found["before"]) / found["weights"]
            sizes = [f"{found[name] / 1e6:.0f} MB" for name in ("weights", "before", "peak")]
            table.add((str(case), *sizes, f"{ratio:.2f}"), case=str(case), ratio=ratio, **found)
    report(describe_machine("torch", "jax", "transformers", "peft", "hookline"), [table], json_file)


if __name__ == "__main__":
    main()
