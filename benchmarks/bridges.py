"""What a bridge and the five plugins cost the loop of another library's trainer.

    python benchmarks/bridges.py [--json FILE]

Each host trains a small model in its own loop, with the callback and the five plugins and without, in many short turns.
Steps take 20 ms and more, on one torch thread. A step's time is the mean over a turn, and the best turn of each counts.
Loading, the first steps and the end of a run are not in it. The processor's time stands beside that by the clock. It is
of the whole process, so what the plugins' own threads use is in it; of waiting it tells nothing. On a machine with
other jobs the clock measures those. It takes two minutes.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from measuring import Table, describe_machine, format_seconds, json_option, report

STEPS, WARM_UP, TURNS = 40, 10, 20
LOG_EVERY: Final = 5
LEAST_SECONDS: Final = 0.02
SLOWER: Final = 0.03
VERIFIERS: Final = ("verify-length", "verify-toxicity", "verify-coherence", "verify-factual")
PLUGINS: Final = ("metrics", "checkpoint", "evaluation", "status", *VERIFIERS)


class Stopwatch:
    """Measures the steps after the first few. A host calls it after each of its steps."""

    def __init__(self) -> None:
        self._steps = 0
        self._began = (0.0, 0.0)
        self.wall = self.processor = float("nan")

    def step(self) -> None:
        self._steps += 1
        if self._steps == WARM_UP:
            self._began = (time.perf_counter(), time.process_time())
        elif self._steps == WARM_UP + STEPS:
            self.wall = (time.perf_counter() - self._began[0]) / STEPS
            self.processor = (time.process_time() - self._began[1]) / STEPS


Train = Callable[[Path, Stopwatch, bool], None]
"""Trains `WARM_UP + STEPS` steps in a folder, with Hookline or without."""


def train_transformers(folder: Path, stopwatch: Stopwatch, with_hookline: bool) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from hookline_transformers import HooklineCallback, hookline_run

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stopwatch.step()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
    )
    make_model: Any = LlamaForCausalLM  # it has no annotations
    model = make_model(config)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(1, 512, (160, 64))]
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=8,
        max_steps=WARM_UP + STEPS,
        logging_steps=LOG_EVERY,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    callbacks: list[TrainerCallback] = [HooklineCallback(folder / "run")] if with_hookline else []
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[*callbacks, Steps()])
    with hookline_run(trainer) if with_hookline else nullcontext():
        trainer.train()


HOSTS: Final[Mapping[str, tuple[str, Train]]] = {"transformers.Trainer": ("transformers", train_transformers)}
"""The trainers, each with the name of its distribution."""


def measure(host: str, train: Train, folder: Path) -> Table:
    table = Table(
        f"{host}: a step in its own loop, with the callback and the five plugins and without",
        "at most 3 % slower, for steps of 20 ms and more",
        ["contender", "a step", "slower by", "held", "processor time", "more by"],
    )
    wall = {"without": float("inf"), "with": float("inf")}
    processor = dict(wall)
    for turn in range(TURNS):
        for name in wall:
            stopwatch = Stopwatch()
            train(folder / f"{name}-{turn}", stopwatch, name == "with")
            wall[name] = min(wall[name], stopwatch.wall)
            processor[name] = min(processor[name], stopwatch.processor)
    if wall["without"] < LEAST_SECONDS:
        table.remarks.append(f"a step took less than {format_seconds(LEAST_SECONDS)}: the promise is of longer ones")
    for name in wall:
        slower, more = wall[name] / wall["without"] - 1, processor[name] / processor["without"] - 1
        held = "-" if name == "without" else "yes" if slower <= SLOWER else "no"
        by_the_clock = [format_seconds(wall[name]), f"{slower:.2%}", held]
        cells = [name, *by_the_clock, format_seconds(processor[name]), f"{more:.2%}"]
        table.add(cells, contender=name, step=wall[name], slower=slower, processor=processor[name], more=more)
    return table


if __name__ == "__main__":
    json_file = json_option(__doc__)
    os.environ.update(
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        HOOKLINE_ALLOW=",".join(PLUGINS),
        HOOKLINE_OPTIONS="metrics.progress=off",
    )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        tables = [measure(host, train, Path(temporary) / name) for host, (name, train) in HOSTS.items()]
    report(describe_machine("hookline", *(name for name, _ in HOSTS.values())), tables, json_file)
