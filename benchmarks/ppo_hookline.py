"""The trainer on CartPole, as the contender of `ppo.py`.

python benchmarks/ppo_hookline.py rate ITERATIONS       # CleanRL's hyperparameters; prints median steps per second
python benchmarks/ppo_hookline.py rate-autograd ITERATIONS      # the same without the hand-written step
python benchmarks/ppo_hookline.py solve SEED CACHE      # until 100 episodes have a mean of 475; prints steps taken
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import deque
from pathlib import Path

from hookline import PluginManager, hookimpl
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig, task
from hookline.training.tasks.cartpole import cartpole
from hookline_hookspecs import Rollout, TrainerState

STEPS = 4 * 128
"""Environment steps in an iteration."""
LESSONS = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None, heeds_evaluations=False)
"""One lesson that goes on whatever comes of evaluations, so that all runs are of one length."""


class Stopwatch:
    """Notes when epochs end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @hookimpl
    def on_epoch_end(self) -> None:
        self.times.append(time.perf_counter())


@task(
    losses={"ppo_actor": {"clip": 0.2, "entropy": 0.01}, "ppo_critic": {"weight": 0.5, "clip": 0.2}},
    optimizer=OptimizerConfig("adam", learning_rate=2.5e-4, options={"eps": 1e-5}),
    rollout=RolloutConfig(num_environments=4, steps_per_rollout=128, minibatches=4, update_epochs=4),
)
def cleanrl(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """CartPole with CleanRL's hyperparameters."""
    return Trainer(config, LESSONS, plugins=plugins)


def rate(iterations: int) -> float:
    """The environment steps per second of the median iteration, the first one with its compilation left out."""
    stopwatch = Stopwatch()
    trainer = cleanrl.trainer(PluginManager(), epochs=iterations)
    trainer.add_hook(stopwatch)
    trainer.train()
    times = stopwatch.times
    return STEPS / statistics.median(after - before for before, after in itertools.pairwise(times))


@task(
    losses=cartpole.config.losses,
    # Slow, since the run goes on long after the pole is balanced.
    optimizer=OptimizerConfig("adam", learning_rate=3e-4, options={"eps": 1e-5}),
    rollout=cartpole.config.rollout,
)
def larger(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """CartPole with the batches of `hookline train cartpole`."""
    return Trainer(config, LESSONS, plugins=plugins)


class SolvedError(Exception):
    """The last 100 episodes have a mean return of 475."""


class UntilSolved:
    """Ends the run once the task is solved, by the returns of the episodes that training itself plays."""

    critical = True

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=100)

    @hookimpl
    def on_rollout_end(self, rollout: Rollout) -> None:
        self._returns.extend(episode.reward or 0.0 for episode in rollout.episodes)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        if len(self._returns) == 100 and sum(self._returns) / 100 >= 475:
            raise SolvedError(state.agent_step)


def solve(seed: int, cache: Path) -> str:
    """How many environment steps it took."""
    worker = RolloutWorker(
        RolloutWorkerConfig(LESSONS, num_environments=64, steps_per_rollout=64, seed=seed, compilation_cache=cache)
    )
    config = TrainerConfig(
        epochs=80,
        seed=seed,
        losses={
            "ppo_actor": {"clip": 0.2, "anneal_clip": True, "entropy": 0.0},
            "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None, "weight": 0.5},
        },
        optimizer=OptimizerConfig("adam", learning_rate=3e-3, options={"eps": 1e-5}),
        rollout=RolloutConfig(minibatches=8, update_epochs=3),
    )
    trainer = Trainer(config, worker=worker)
    trainer.add_hook(UntilSolved())
    try:
        trainer.train()
    except SolvedError as solved:
        return str(solved)
    return "unsolved"


if __name__ == "__main__":
    if sys.argv[1] == "rate-autograd":
        sys.modules["hookline.training.learner.fused_ppo"] = None  # type: ignore[assignment]  # as if it were deleted
    if sys.argv[1] in ("rate", "rate-autograd"):
        print(rate(int(sys.argv[2])))
    else:
        print(solve(int(sys.argv[2]), Path(sys.argv[3])))
