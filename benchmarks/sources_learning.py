"""Whether CartPole and the arithmetic demo still learn from rollouts that are made ahead, seed by seed.

    python benchmarks/sources_learning.py [--tasks cartpole arithmetic] [--seeds 300-302] [--results FILE]

The tasks are those of `hookline train`, with their own settings. The rollouts of a run are as stale as its row allows:
`prefetch` is as many epochs. CartPole holds if it is solved within its 80 epochs: the last 100 episodes of training
have a mean return of 475. Arithmetic holds if the policy solves 0.8 of 1024 held-out sums in the end. No run sees them.
The settings were not tuned on these seeds. The page is written anew after each run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jax
from arithmetic import LESSON, PROBLEMS, PROMISED_SHARE, parse_seeds
from measuring import write_page

import hookline
from hookline import hookimpl
from hookline.plugin_manager.settings import Settings
from hookline.training import Trainer
from hookline.training.tasks.arithmetic import arithmetic
from hookline.training.tasks.cartpole import cartpole
from hookline_hookspecs import TrainerState

HERE: Final = Path(__file__).resolve().parent
VARIANTS: Final = (
    ("local", 1, 0),
    ("ahead", 1, 1),
    ("ahead", 1, 4),
    ("processes", 2, 1),
    ("processes", 2, 4),
    ("ray", 2, 1),
)
"""Source, workers and staleness."""
TASKS: Final = {"cartpole": cartpole, "arithmetic": arithmetic}
VERIFIERS: Final = ("verify-coherence", "verify-factual", "verify-length", "verify-toxicity")
COLUMNS: Final = ("task", "seed", "source", "staleness", "mean staleness", "epochs", "outcome", "holds", "seconds")


class Staleness:
    """Keeps the staleness of each epoch that had rollouts."""

    def __init__(self) -> None:
        self.found: list[float] = []

    @hookimpl
    def on_train_phase_start(self, state: TrainerState) -> None:
        if "source/staleness" in state.rollout_stats:
            self.found.append(state.rollout_stats["source/staleness"])


@dataclass(frozen=True)
class Outcome:
    text: str
    holds: bool


def judge_cartpole(trainer: Trainer) -> Outcome:
    reason = trainer.state.stop_reason or "not solved"
    return Outcome(reason.rpartition(" ")[2] if reason.startswith("solved") else reason, reason.startswith("solved"))


def judge_arithmetic(trainer: Trainer) -> Outcome:
    assert trainer.worker is not None
    scores = trainer.worker.evaluate([LESSON], n_examples=PROBLEMS, rng=jax.random.key(0), held_out=True)
    share = scores[f"eval/{LESSON}/success_rate"]
    return Outcome(f"{share:.3f}", share >= PROMISED_SHARE)


JUDGES: Final = {"cartpole": judge_cartpole, "arithmetic": judge_arithmetic}


def run(task: str, seed: int, source: str, workers: int, staleness: int) -> list[str]:
    watch = Staleness()
    epoch = TASKS[task].config.rollout.rollouts_per_epoch
    assignments = [f"rollout.source={source}", f"rollout.workers={workers}"]
    if source != "local":
        assignments += [
            f"rollout.max_staleness={staleness}",
            f"rollout.source_options.prefetch={staleness * epoch}",
        ]
    begun = time.perf_counter()
    trainer = hookline.train(
        task,
        seed=seed,
        assignments=assignments,
        hooks=[watch],
        settings=Settings(
            allowed=dict.fromkeys((*VERIFIERS, "ray") if task == "arithmetic" else ("ray",), "this script")
        ),
    )
    seconds = time.perf_counter() - begun
    outcome = JUDGES[task](trainer)
    mean = sum(watch.found) / len(watch.found) if watch.found else 0.0
    return [
        task,
        str(seed),
        source if workers == 1 else f"{source}, {workers} workers",
        str(staleness),
        f"{mean:.2f}",
        str(trainer.state.epoch),
        outcome.text,
        "yes" if outcome.holds else "no",
        f"{seconds:.0f}",
    ]


def write(file: Path, rows: Sequence[Sequence[str]]) -> None:
    words = [
        "Staleness is the limit, and `prefetch` so many epochs that it is reached. Outcome is the mean return of the",
        f"last 100 episodes of training, or the greedy exact match on {PROBLEMS} held-out two-digit sums. CartPole",
        f"holds with 475 within 80 epochs, arithmetic with {PROMISED_SHARE} after 150. Seconds depend on the machine's",
        "load.",
    ]
    title = "Learning from stale rollouts, seed by seed"
    write_page(file, title, words, COLUMNS, rows, summary(rows), written_by="sources_learning.py")


def summary(rows: Sequence[Sequence[str]]) -> list[str]:
    kinds = dict.fromkeys((row[0], row[2], row[3]) for row in rows)
    own = {kind: [row for row in rows if (row[0], row[2], row[3]) == kind] for kind in kinds}
    return [
        f"{task}, {source}, staleness {staleness}: {sum(row[7] == 'yes' for row in found)} of {len(found)} hold"
        for (task, source, staleness), found in own.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("300-302"), help="such as 7, 0,2,5 or 300-302")
    parser.add_argument("--results", type=Path, default=HERE / "SOURCES_LEARNING.md", metavar="FILE")
    given = parser.parse_args()
    rows: list[list[str]] = []
    for task in given.tasks:
        for seed in given.seeds:
            for source, workers, staleness in VARIANTS:
                rows.append(run(task, seed, source, workers, staleness))
                print(" · ".join(rows[-1]), flush=True)
                write(given.results, rows)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
