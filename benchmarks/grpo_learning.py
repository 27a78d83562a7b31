"""What GRPO adds to a tiny Qwen3, seed by seed: with all weights and by LoRA, and with shuffled rewards as a control.

python benchmarks/grpo_learning.py [--seeds 200-207] [--results FILE]

For each seed, `examples/make_tiny_model.py` makes a random model, and the warm start of `examples/grpo_hf.toml` trains
it on worked sums until it solves 40 %. That is the base of four runs of this file, without its warm start.
Before and after are the greedy exact match on 1024 held-out two-digit sums, the same for all. No run sees them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from arithmetic import parse_seeds
from measuring import describe_machine
from transformers import AutoTokenizer

import hookline
from hookline import hookimpl
from hookline.plugin_manager.settings import Settings
from hookline.training import Trainer
from hookline_hookspecs import Rollout, TrainerState

HERE: Final = Path(__file__).resolve().parent
EXAMPLES: Final = HERE.parent / "examples"
RUN_FILE: Final = EXAMPLES / "grpo_hf.toml"
LESSON: Final = "addition-2"
PROBLEMS: Final = 1024
EPOCHS: Final = 160
"""Epochs of GRPO, after the warm start."""
PROMISED_LIFT: Final = 0.3
LORA: Final = ("lora.r=16", "optimizer.learning_rate=1e-3")
COLUMNS: Final = ("seed", "trained", "rewards", "before", "after", "lift", "seconds")


class ShuffledRewards:
    """Gives each response the reward of another one of its rollout, from which nothing can be learnt."""

    critical = True

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    @hookimpl
    def on_rollout_end(self, rollout: Rollout) -> None:
        rollout.arrays["rewards"] = self._rng.permutation(rollout.arrays["rewards"])


class UntilWarm:
    """Ends the run with its warm start."""

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        shares = [
            value for name, value in state.eval_scores.items() if name.startswith("warm_start/") and "/success" in name
        ]
        if shares and min(shares) >= 0.4:
            state.stop_reason = "warm"


def train(base: Path, seed: int, assignments: Sequence[str], hooks: Sequence[Any]) -> Trainer:
    return hookline.train(
        str(RUN_FILE),
        policy=str(base),
        seed=seed,
        assignments=assignments,
        hooks=hooks,
        settings=Settings(allowed={}),  # no plugins
    )


def solved(trainer: Trainer) -> float:
    """The share of held-out sums that the policy solves."""
    assert trainer.worker is not None
    rng = jax.random.key(0)
    scores = trainer.worker.evaluate([LESSON], n_examples=PROBLEMS, rng=rng, held_out=True)
    return scores[f"eval/{LESSON}/success_rate"]


def run_seed(seed: int, folder: Path) -> list[list[str]]:
    """Four runs from one base."""
    made, base = folder / "random", folder / "base"
    subprocess.run([sys.executable, EXAMPLES / "make_tiny_model.py", made, str(seed)], check=True, capture_output=True)
    warm = train(made, seed, [f"warm_start.dataset={made / 'sums.jsonl'}", "epochs=200"], [UntilWarm()])
    model: Any = warm.policy
    model.model.save_pretrained(base)
    AutoTokenizer.from_pretrained(made).save_pretrained(base)
    before = solved(warm)
    rows = []
    for rewards, hooks in {"true": [], "shuffled": [ShuffledRewards(seed)]}.items():
        for trained, assignments in {"all weights": (), "LoRA": LORA}.items():
            begun = time.perf_counter()
            after = solved(train(base, seed, [f"epochs={EPOCHS}", "warm_start=none", *assignments], hooks))
            seconds = time.perf_counter() - begun
            rows.append(
                [
                    str(seed),
                    trained,
                    rewards,
                    f"{before:.3f}",
                    f"{after:.3f}",
                    f"{after - before:+.3f}",
                    f"{seconds:.0f}",
                ]
            )
            print(" · ".join(rows[-1]), flush=True)
    return rows


def page(rows: Sequence[Sequence[str]]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine("hookline", "torch", "jax").items())
    lines = [
        "# GRPO of a tiny Qwen3, seed by seed",
        "",
        f"Written by `benchmarks/grpo_learning.py` on {time.strftime('%Y-%m-%d')}: {machine}.",
        "The model has 2 layers of width 128 and its own tokenizer. Before and after are the greedy exact match on",
        f"{PROBLEMS} held-out two-digit sums, after the warm start and after {EPOCHS} epochs of GRPO from there.",
        "LoRA has rank 16 on the frozen base.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---:"] * len(COLUMNS), *rows)),
        "",
        *(f"- {line}" for line in summary(rows)),
    ]
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = []
    for kind in dict.fromkeys((row[1], row[2]) for row in rows):
        lifts = [float(row[5]) for row in rows if (row[1], row[2]) == kind]
        lines.append(
            f"{kind[0]}, {kind[1]} rewards: lift least {min(lifts):+.3f}, median {statistics.median(lifts):+.3f}, "
            f"most {max(lifts):+.3f}; at least {PROMISED_LIFT} in {sum(lift >= PROMISED_LIFT for lift in lifts)} "
            f"of {len(lifts)}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("200-207"), help="such as 7, 0,2,5 or 200-207")
    parser.add_argument("--results", type=Path, default=HERE / "GRPO_LEARNING.md", metavar="FILE")
    given = parser.parse_args()
    rows: list[list[str]] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows += run_seed(seed, Path(folder))
        given.results.write_text(page(rows), encoding="utf-8")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
