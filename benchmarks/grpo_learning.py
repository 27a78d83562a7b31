"""What GRPO adds to a tiny Qwen3, seed by seed: with all weights and by LoRA, and with shuffled rewards as a control.

python benchmarks/grpo_learning.py [--seeds 208-213] [--trained LoRA] [--rewards true] [--results FILE]

For each seed, `examples/make_tiny_model.py` makes a random model, and the warm start of `examples/grpo_hf.toml` trains
it on worked sums until it solves 40 %. That is the base of four runs of this file, without its warm start.
Before and after are the greedy exact match on 1024 held-out two-digit sums, the same for all. No run sees them.
The page is written anew after each run. Runs that it has already are not repeated; delete it to begin anew.
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
from measuring import read_rows, write_page
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
EPOCHS: Final = 80
"""Epochs of GRPO, after the warm start."""
PROMISED_LIFT: Final = 0.3
TRAINED: Final = {"all-weights": (), "LoRA": ("lora.r=16", "optimizer.learning_rate=1e-3")}
"""The weights that are trained, and what is set for it."""
REWARDS: Final = ("true", "shuffled")
COLUMNS: Final = ("seed", "trained", "rewards", "before", "after", "lift", "CPU seconds")


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


def make_base(seed: int, folder: Path) -> tuple[Path, float]:
    """A random model after the warm start, and the share of held-out sums that it solves."""
    made, base = folder / "random", folder / "base"
    subprocess.run([sys.executable, EXAMPLES / "make_tiny_model.py", made, str(seed)], check=True, capture_output=True)
    warm = train(made, seed, [f"warm_start.dataset={made / 'sums.jsonl'}", "epochs=200"], [UntilWarm()])
    model: Any = warm.policy
    model.model.save_pretrained(base)
    AutoTokenizer.from_pretrained(made).save_pretrained(base)
    return base, solved(warm)


def run(base: Path, before: float, seed: int, trained: str, rewards: str) -> list[str]:
    hooks = [ShuffledRewards(seed)] if rewards == "shuffled" else []
    begun = time.process_time()
    after = solved(train(base, seed, [f"epochs={EPOCHS}", "warm_start=none", *TRAINED[trained]], hooks))
    seconds = time.process_time() - begun
    return [
        str(seed),
        trained,
        rewards,
        f"{before:.3f}",
        f"{after:.3f}",
        f"{after - before:+.3f}",
        f"{seconds:.0f}",
    ]


def write(file: Path, rows: Sequence[Sequence[str]]) -> None:
    words = [
        "The model has 2 layers of width 128 and its own tokenizer. Before and after are the greedy exact match on",
        f"{PROBLEMS} held-out two-digit sums, after the warm start and after {EPOCHS} epochs of GRPO from there.",
        "LoRA has rank 16 on the frozen base. CPU seconds are those of GRPO, without the warm start.",
    ]
    title = "GRPO of a tiny Qwen3, seed by seed"
    write_page(file, title, words, COLUMNS, rows, summary(rows), written_by="grpo_learning.py")


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
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("208-213"), help="such as 7, 0,2,5 or 208-213")
    parser.add_argument("--trained", nargs="+", choices=list(TRAINED), default=list(TRAINED))
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=REWARDS)
    parser.add_argument("--results", type=Path, default=HERE / "GRPO_LEARNING.md", metavar="FILE")
    given = parser.parse_args()
    rows = read_rows(given.results)
    for seed in given.seeds:
        asked = [[str(seed), trained, rewards] for rewards in given.rewards for trained in given.trained]
        missing = [kind for kind in asked if kind not in [row[:3] for row in rows]]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            base, before = make_base(seed, Path(folder))
            for _, trained, rewards in missing:
                rows.append(run(base, before, seed, trained, rewards))
                print(" · ".join(rows[-1]), flush=True)
                write(given.results, rows)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
