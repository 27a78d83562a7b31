"""What GRPO adds in the examples of conversations, seed by seed, with shuffled rewards as a control.

python benchmarks/conversations.py [EXAMPLE ...] [--seeds 300-302]

Each run is that of an example, `calculator_tool` or `guess_the_number`. Its own `scores` are measured on held-out
problems before the first rollout, which is after the warm start, and at the end. Settings were tried on seeds 1 to 3.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from arithmetic import parse_seeds

import hookline
from hookline import PluginManager, hookimpl
from hookline.plugin_manager.settings import Settings
from hookline.rollout import RolloutWorker
from hookline.training import Task, Trainer, TrainerConfig
from hookline_hookspecs import Rollout

HERE: Final = Path(__file__).resolve().parent
EXAMPLES: Final = {"calculator_tool": "calculator", "guess_the_number": "game"}
"""The examples, and their tasks."""

Scores = Mapping[str, float]


class Before:
    """Measures the policy before the first rollout, and can shuffle the rewards of all of them."""

    critical = True

    def __init__(self, worker: RolloutWorker, measure: Callable[[RolloutWorker], Scores], shuffled: int | None) -> None:
        self._worker = worker
        self._measure = measure
        self._rng = None if shuffled is None else np.random.default_rng(shuffled)
        self.scores: Scores | None = None

    @hookimpl
    def on_rollout_start(self) -> None:
        self.scores = self.scores or self._measure(self._worker)

    @hookimpl
    def on_rollout_end(self, rollout: Rollout) -> None:
        """Give each conversation the reward of another one of its rollout, from which nothing can be learnt."""
        if self._rng is not None:
            rollout.arrays["rewards"] = self._rng.permutation(rollout.arrays["rewards"])


def run(example: str, seed: int, *, is_control: bool) -> tuple[Scores, Scores, float]:
    """The scores before and after GRPO, and the run's seconds."""
    module = importlib.import_module(example)
    task: Task = getattr(module, EXAMPLES[example])
    watching: list[Before] = []

    def build(config: TrainerConfig, plugins: PluginManager) -> Trainer:
        trainer = task.build(config, plugins)
        assert trainer.worker is not None
        watching.append(Before(trainer.worker, module.scores, seed if is_control else None))
        plugins.register(watching[0], "before")
        return trainer

    begun = time.perf_counter()
    trainer = hookline.train(Task(build, task.config), seed=seed, settings=Settings(allowed={}))  # no plugins
    assert trainer.worker is not None
    assert watching[0].scores is not None
    return watching[0].scores, module.scores(trainer.worker), time.perf_counter() - begun


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("300-302"))
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(HERE.parent / "examples"))
    print("| example | seed | rewards | held out, before and after GRPO | seconds |\n|---|---:|---|---|---:|")
    for example in given.examples:
        for seed in given.seeds:
            for rewards in ("true", "shuffled"):
                before, after, seconds = run(example, seed, is_control=rewards == "shuffled")
                change = ", ".join(f"{name} {before[name]:.3f} to {after[name]:.3f}" for name in before)
                print(f"| {example} | {seed} | {rewards} | {change} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
