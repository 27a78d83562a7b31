"""`hookline train arithmetic`, one seed after the other: what each run solves in the end, and how long it takes.

python benchmarks/arithmetic.py [--seeds 100-119] [--shuffle-rewards] [--results FILE]

Each seed is one run of the command, with all installed plugins, in a process and a folder of its own. When it is over,
its last checkpoint is evaluated on 1024 two-digit sums, the same ones for each seed. They are held out: no run sees
them, and none ends or chooses its weights by them. The page is written anew after each seed, so that one that is ended
keeps the rows that it has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from measuring import write_page

from hookline import PluginManager, hookimpl
from hookline.training import Trainer, TrainerConfig
from hookline.training.tasks.arithmetic import arithmetic
from hookline.training.tasks.task import Task
from hookline_hookspecs import Rollout

HERE: Final = Path(__file__).resolve().parent
LESSON: Final = "addition-2"
PROBLEMS: Final = 1024
PROMISED_SHARE: Final = 0.8
PROMISED_SECONDS: Final = 180.0
HOOKLINE: Final = (sys.executable, "-m", "hookline")


class ShuffledRewards:
    """Gives each response the reward of another one of its rollout: the control, from which nothing can be learnt."""

    critical = True

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    @hookimpl
    def on_rollout_end(self, rollout: Rollout) -> None:
        rewards = [episode.reward for episode in rollout.episodes]
        for episode, place in zip(rollout.episodes, self._generator.permutation(len(rewards)), strict=True):
            episode.reward = rewards[place]


def _build_shuffled(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    plugins.register(ShuffledRewards(config.seed), "shuffled-rewards")
    return arithmetic.build(config, plugins)


shuffled = Task(_build_shuffled, arithmetic.config)


@dataclass(frozen=True)
class Outcome:
    """One seed's run; an error in the place of numbers when it failed."""

    seed: int
    seconds: float
    cpu_seconds: float
    warm_start_epochs: int = 0
    after_warm_start: float = 0.0
    in_the_end: float = 0.0
    epochs: int = 0
    error: str | None = None

    @property
    def is_kept(self) -> bool:
        return self.error is None and self.in_the_end >= PROMISED_SHARE and self.seconds <= PROMISED_SECONDS

    def cells(self) -> list[str]:
        times = [f"{self.seconds:.0f}", f"{self.cpu_seconds:.0f}"]
        if self.error is not None:
            return [str(self.seed), f"failed: {self.error}", "-", "-", "-", *times, "no"]
        return [
            str(self.seed),
            f"{self.after_warm_start:.3f}",
            f"{self.in_the_end:.3f}",
            str(self.warm_start_epochs),
            str(self.epochs),
            *times,
            "yes" if self.is_kept else "no",
        ]


COLUMNS: Final = (
    "seed",
    "after warm start",
    "in the end",
    "epochs of warm start",
    "epochs",
    "seconds",
    "CPU seconds",
    "held",
)


def run(task: str, seed: int) -> Outcome:
    """Train with a seed as a user would, then evaluate what it left."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        begun, cpu_begun = time.perf_counter(), _cpu_seconds_of_children()
        command = [*HOOKLINE, "train", task, "--seed", str(seed), "--run-dir", str(run_dir)]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds_of_children() - cpu_begun
        if ended.returncode:
            said = [*ended.stdout.splitlines(), *ended.stderr.splitlines(), f"exit code {ended.returncode}"]
            return Outcome(seed, seconds, cpu_seconds, error=next(line for line in reversed(said) if line.strip()))
        warm_start_epochs, after_warm_start = _warm_start(run_dir / "stats.sqlite")
        command = [*HOOKLINE, "evaluate", str(run_dir), "--lesson", LESSON, "--n-examples", str(PROBLEMS), "--json"]
        found = json.loads(subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)
        return Outcome(
            seed,
            seconds,
            cpu_seconds,
            warm_start_epochs,
            after_warm_start,
            found["scores"][f"eval/{LESSON}/success_rate"],
            found["epoch"] + 1,
        )


def _warm_start(stats: Path) -> tuple[int, float]:
    """How many epochs it took, and the share of problems of training that the policy solved after the last of them."""
    query = "select epoch, value from metrics where name = ? order by step"
    with sqlite3.connect(stats) as connection:
        judged = connection.execute(query, (f"warm_start/{LESSON}/success_rate",)).fetchall()
    return len(judged), judged[-1][1]


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write(file: Path, outcomes: list[Outcome], seeds: list[int], *, is_control: bool) -> None:
    title = "`hookline train arithmetic` with rewards shuffled" if is_control else "`hookline train arithmetic`"
    words = [
        f"Torch computes with {arithmetic.config.threads} threads, and all installed plugins are active.",
        "",
        "`after warm start` is the greedy exact match on 512 two-digit sums of training when the warm start ended,",
        f"`in the end` that on {PROBLEMS} held-out ones, which no run sees or ends by. Seconds are those of the whole",
        f"process. A row is held with at least {PROMISED_SHARE} in the end, in at most {PROMISED_SECONDS:.0f} seconds.",
    ]
    write_page(
        file,
        f"{title}, seed by seed",
        words,
        COLUMNS,
        [outcome.cells() for outcome in outcomes],
        summary(outcomes, seeds),
        written_by="arithmetic.py",
        distributions=("hookline", "torch", "jax", "mlx"),
    )


def summary(outcomes: list[Outcome], seeds: list[int]) -> list[str]:
    # A run that failed solved nothing.
    shares, seconds = [o.in_the_end for o in outcomes], [o.seconds for o in outcomes]
    return [
        f"{len(outcomes)} of {len(seeds)} seeds were run",
        f"in the end: least {min(shares):.3f}, median {statistics.median(shares):.3f}",
        f"seconds: most {max(seconds):.0f}, median {statistics.median(seconds):.0f}",
        f"at least {PROMISED_SHARE}: {sum(share >= PROMISED_SHARE for share in shares)} of {len(outcomes)}",
        f"at most {PROMISED_SECONDS:.0f} seconds: {sum(s <= PROMISED_SECONDS for s in seconds)} of {len(outcomes)}",
    ]


def parse_seeds(text: str) -> list[int]:
    """`3`, `0,2,5` or `100-119`."""
    ranges = [part.partition("-") for part in text.split(",")]
    return [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("100-119"), help="such as 7, 0,2,5 or 100-119")
    parser.add_argument("--shuffle-rewards", action="store_true", help="the control, which must not learn")
    parser.add_argument("--results", type=Path, metavar="FILE", help="the page to write")
    given = parser.parse_args()
    is_control: bool = given.shuffle_rewards
    task = f"{Path(__file__).resolve()}:shuffled" if is_control else "arithmetic"
    results = given.results or HERE / ("ARITHMETIC_SHUFFLED.md" if is_control else "ARITHMETIC.md")
    outcomes: list[Outcome] = []
    for seed in given.seeds:
        outcomes.append(run(task, seed))
        print(
            " · ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, outcomes[-1].cells(), strict=True)), flush=True
        )
        write(results, outcomes, given.seeds, is_control=is_control)
    print("\n".join([*summary(outcomes, given.seeds), f"written to {os.path.relpath(results)}"]))


if __name__ == "__main__":
    main()
