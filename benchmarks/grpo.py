"""Completions per second of GRPO, beside TRL's `GRPOTrainer` with the same Hugging Face model.

    python benchmarks/grpo.py [--json FILE]

Both train the same qwen3 (2 layers, width 128, a byte-level BPE tokenizer) from one folder, on the same prompts, with
as many samples of as many tokens, in the same precision, on all cores. A step samples 512 responses, scores them with
the same function and takes one gradient step on all of them. The reward is the share of digits, so that nearly every
group has different rewards and no row can be left out. Each contender is a process of its own; they take turns, and the
median step of a turn counts, the best of a contender's turns. Start-up and the first steps are not in it. Neither has
plugins or logs. It takes about ten minutes. The last column is the ratio of CPU times, which is steadier on a machine
that does other work; with `taskset -c 0` in front, all is measured on one core.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from measuring import Table, describe_machine, format_seconds, json_option, report

OF_TRL: Final = 4.0
"""How many times the completions per second of TRL we promise."""

TURNS, STEPS, WARM_UP = 3, 8, 3
PROMPTS, SAMPLES = 64, 8
CONTENDERS: Final = ("hookline", "trl")
QUESTION: Final = "Here are two numbers and a sign between them. Write the number that they come to."


class Case(NamedTuple):
    question: str
    """Comes before each sum."""
    new_tokens: int
    precision: str


CASES: Final = (
    Case("", 16, "fp32"),
    Case(QUESTION, 16, "fp32"),
    Case(QUESTION, 64, "fp32"),
    Case(QUESTION, 16, "bf16"),
)


def cores() -> int:
    """The cores that this process may use: `taskset -c 0` makes it one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prompts_of(case: Case) -> list[str]:
    sums = [f"{a}+{b}=" for a in range(10, 100) for b in range(10, 100, 7)]
    return [f"{case.question} {one}".strip() for one in sums]


def share_of_digits(text: str) -> float:
    return sum(character.isdigit() for character in text) / max(len(text), 1)


def make_model(folder: Path) -> None:
    from hookline.testing.tiny_models import tiny_model, tiny_tokenizer

    readme = Path(__file__).parent.parent / "README.md"
    tiny_tokenizer(folder, readme.read_text(encoding="utf-8").splitlines(), vocabulary=512, single_digits=True)
    tiny_model(
        folder,
        "qwen3",
        spread=1.0,
        hidden_size=128,
        intermediate_size=384,
        head_dim=32,
        rope_theta=1e4,
        max_position_embeddings=256,
    )


class Turn:
    """The steps of one contender's turn: their times, and the length of their responses."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []
        self.lengths: list[float] = []

    def step_ends(self) -> None:
        self._ends.append((time.perf_counter(), time.process_time()))

    def result(self) -> dict[str, float]:
        steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self._ends)][WARM_UP - 1 :]
        seconds, cpu_seconds = (statistics.median(times) for times in zip(*steps, strict=True))
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "length": statistics.mean(self.lengths)}


def train_hookline(model: Path, case: Case) -> Turn:
    from hookline.rollout import CurriculumConfig, Lesson
    from hookline.rollout.text import TextProblem, TextTask
    from hookline.training import Trainer
    from hookline.training.config import LearnerConfig, OptimizerConfig, RolloutConfig, TrainerConfig
    from hookline_hookspecs import Rollout, hookimpl

    turn = Turn()

    class Clock:
        @hookimpl
        def on_rollout_end(self, rollout: Rollout) -> None:
            turn.lengths.append(rollout.stats["mean_length"])

        @hookimpl
        def on_epoch_end(self) -> None:
            turn.step_ends()

    precision: Any = case.precision
    config = TrainerConfig(
        epochs=WARM_UP + STEPS,
        policy=str(model),
        threads=cores(),
        losses={"grpo": {}},
        optimizer=OptimizerConfig("adamw", learning_rate=1e-4),
        learner=LearnerConfig(precision=precision),
        rollout=RolloutConfig(
            num_environments=PROMPTS, samples_per_prompt=SAMPLES, minibatches=1, update_epochs=1, precision=precision
        ),
    )
    task = TextTask(
        [TextProblem(prompt, "") for prompt in prompts_of(case)],
        checker=lambda _, response: share_of_digits(response),
        max_new_tokens=case.new_tokens,
    )
    lessons = CurriculumConfig([Lesson("sums", task)], micro_eval_frequency=None, eval_frequency=None)
    trainer = Trainer(config, lessons)
    trainer.add_hook(Clock())
    trainer.train()
    return turn


def train_trl(model: Path, case: Case) -> Turn:
    import torch
    from datasets import Dataset  # type: ignore[import-untyped]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(cores())
    turn = Turn()

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            turn.step_ends()

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        turn.lengths.append(statistics.mean(map(len, completion_ids)))
        return [share_of_digits(completion) for completion in completions]

    with tempfile.TemporaryDirectory() as output:
        args = GRPOConfig(
            output_dir=output,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_generations=SAMPLES,
            steps_per_generation=1,
            num_iterations=1,
            beta=0.0,
            max_completion_length=case.new_tokens,
            temperature=1.0,
            learning_rate=1e-4,
            max_steps=WARM_UP + STEPS,
            bf16=case.precision == "bf16",
            gradient_checkpointing=False,
            use_cpu=not torch.cuda.is_available(),
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts_of(case)]),
            processing_class=AutoTokenizer.from_pretrained(model),
            callbacks=[Clock()],
        ).train()
    return turn


TRAIN: Final = {"hookline": train_hookline, "trl": train_trl}


def take_turn(contender: str, model: Path, case: Case) -> dict[str, float]:
    """One contender's turn, in a process of its own. What it prints goes to a file, shown if it fails."""
    command = [sys.executable, __file__, "--turn", contender, str(model), json.dumps(case)]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **offline}, check=False)
    if done.returncode:
        raise SystemExit(f"{contender} failed:\n{done.stdout}\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def grpo_steps() -> Table:
    table = Table(
        f"A GRPO step of {PROMPTS} prompts x {SAMPLES} samples, qwen3 2 x 128",
        f">= {OF_TRL:g} x the completions/s of TRL",
        ("prompt", "new tokens", "precision", "hookline", "TRL", "completions/s", "x TRL", "", "x TRL, CPU"),
    )
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        make_model(model)
        for case in CASES:
            turns = [{name: take_turn(name, model, case) for name in CONTENDERS} for _ in range(TURNS)]
            ours, trl = (min((turn[name] for turn in turns), key=lambda own: own["seconds"]) for name in CONTENDERS)
            ratio = trl["seconds"] / ours["seconds"]
            of_cpu = min(turn["trl"]["cpu_seconds"] for turn in turns) / min(
                turn["hookline"]["cpu_seconds"] for turn in turns
            )
            rate = PROMPTS * SAMPLES / ours["seconds"]
            length = prompt_length(model, case)
            table.add(
                (
                    str(length),
                    f"{ours['length']:.1f} / {trl['length']:.1f}",
                    case.precision,
                    format_seconds(ours["seconds"]),
                    format_seconds(trl["seconds"]),
                    f"{rate:,.0f}",
                    f"{ratio:.1f}",
                    "kept" if ratio >= OF_TRL else "not kept",
                    f"{of_cpu:.1f}",
                ),
                prompt=length,
                new_tokens=case.new_tokens,
                precision=case.precision,
                hookline=ours,
                trl=trl,
                ratio=ratio,
                cpu_ratio=of_cpu,
            )
    return table


def prompt_length(model: Path, case: Case) -> int:
    """The tokens of the longest prompt."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    return max(len(tokenizer(prompt)["input_ids"]) for prompt in prompts_of(case))


def main() -> None:
    if sys.argv[1:2] == ["--turn"]:
        contender, model, case = sys.argv[2:]
        print(json.dumps(TRAIN[contender](Path(model), Case(*json.loads(case))).result()))
        return
    file = json_option(__doc__)
    report(describe_machine("torch", "transformers", "trl", "jax"), [grpo_steps()], file)


if __name__ == "__main__":
    main()
