"""How much faster a run is whose rollouts are made while the learner trains, beside one that makes them in step.

    python benchmarks/sources.py [--json FILE]

Where both wait, they wait equally long, 50 ms a step of each, beside what they compute. Otherwise the passes over each
rollout are set after a trial, so that rollouts and updates take about equal time. Then `local` and `ahead` take turns
of a few epochs each. The time of a turn is its median epoch, and each source is judged by its best turn. Rollouts may
wait, as for a simulator in another process or an engine on another device. Updates may wait, as for an accelerator. If
both compute, each needs a core of its own. Then Ray's workers, one beside two. It takes three minutes on a machine that
has nothing else to do, and says little on one that has.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import gymnasium
import jax
from measuring import Table, describe_machine, format_seconds, json_option, report

from hookline import PluginManager, hookimpl
from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.environments import cartpole
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition
from hookline.rollout.sources import SourceRequest
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline_ray.source import build_ray

TURNS: Final = 4
EPOCHS: Final = 10
WARM_UP: Final = 3
"""Epochs of a turn that are not counted: the first rollouts are not made ahead."""
PROMISE: Final = 1.6
WAIT: Final = 0.05
"""Seconds that a step of an environment and a gradient step wait, where they do. Not chosen by the result."""
SUBSTEPS: Final = 150
RAY_PROMISE: Final = 1.8
DRIVER_PROMISE: Final = 0.005
RAY_ROLLOUTS: Final = 16


class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose steps wait, as for a simulator in another process."""

    def step(self, action: Any) -> Any:
        time.sleep(WAIT)
        return self.env.step(action)


def _heavy_step(key: jax.Array, state: Any, action: jax.Array) -> Transition:
    """A step of CartPole after some arithmetic of no consequence."""
    work = jax.lax.fori_loop(0, SUBSTEPS, lambda _, x: jax.numpy.sin(x) + 1e-3, state.physics)
    after = cartpole.step(key, state, action)
    return after._replace(reward=after.reward + 0.0 * work.sum())


HEAVY: Final = JaxEnvironment("Heavy", 4, cartpole.CARTPOLE.actions, cartpole.CARTPOLE.reset, _heavy_step)


@dataclass(frozen=True)
class Kind:
    """A run to measure."""

    environment: Any
    rollout: RolloutConfig
    step_seconds: float = 0.0
    """What each gradient step waits for, beside its own computation."""


SMALL: Final = RolloutConfig(num_environments=1, steps_per_rollout=8, minibatches=8, update_epochs=1)
"""Eight steps of the environment, and as many gradient steps."""
KINDS: Final = {
    "both wait": Kind(lambda: Waiting(gymnasium.make("CartPole-v1")), SMALL, step_seconds=WAIT),
    "rollouts wait, updates compute": Kind(lambda: Waiting(gymnasium.make("CartPole-v1")), SMALL),
    "both compute": Kind(
        HEAVY, RolloutConfig(num_environments=256, steps_per_rollout=64, minibatches=8, update_epochs=1)
    ),
}


@dataclass
class Stopwatch:
    """A plugin that measures epochs, and within them the rollout and the train phase. It has gradient steps wait."""

    step_seconds: float = 0.0
    epochs: list[float] = field(default_factory=list)
    rollouts: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)
    _began: float = 0.0
    _trained: float = 0.0

    @hookimpl
    def on_epoch_start(self) -> None:
        self._began = time.perf_counter()

    @hookimpl
    def on_train_phase_start(self) -> None:
        self._trained = time.perf_counter()

    @hookimpl
    def on_mb_end(self) -> None:
        if self.step_seconds:
            time.sleep(self.step_seconds)

    @hookimpl
    def on_epoch_end(self) -> None:
        now = time.perf_counter()
        self.epochs.append(now - self._began)
        self.rollouts.append(self._trained - self._began)
        self.updates.append(now - self._trained)


def train(kind: Kind, rollout: RolloutConfig, epochs: int = EPOCHS) -> Stopwatch:
    """Train for some epochs. Returns the times of those that count."""
    watch = Stopwatch(kind.step_seconds)
    with PluginManager() as plugins:
        plugins.register(watch)
        lessons = CurriculumConfig([Lesson("pole", kind.environment)], eval_frequency=None, micro_eval_frequency=None)
        config = TrainerConfig(epochs, rollout=rollout)
        Trainer(config, lessons, MLPPolicy(4, Discrete(2)), plugins=plugins).train()
    for own in (watch.epochs, watch.rollouts, watch.updates):
        del own[:WARM_UP]
    return watch


def balanced(kind: Kind) -> RolloutConfig:
    """The config with so many passes over each rollout that updates take about as long as rollouts."""
    if kind.step_seconds:
        return kind.rollout
    trial = train(kind, kind.rollout)
    passes = round(statistics.median(trial.rollouts) / statistics.median(trial.updates))
    return replace(kind.rollout, update_epochs=max(passes, 1))


def beside_local(source: str, **options: Any) -> Table:
    """A table of how much faster a source is than `local`.

    :param options: further fields of the source's `RolloutConfig`.
    """
    table = Table(
        f"A run whose rollouts are made by `{source}`, beside `local`",
        f"at least {PROMISE} times as fast, where rollouts and updates take equal time",
        ["kind of run", "rollouts : updates", "local, an epoch", f"{source}, an epoch", "times as fast"],
    )
    for name, kind in KINDS.items():
        config = balanced(kind)
        configs = {"local": config, source: replace(config, source=source, **options)}
        turns: dict[str, list[float]] = {own: [] for own in configs}
        shares: list[float] = []
        for _ in range(TURNS):
            for own, rollout in configs.items():
                watch = train(kind, rollout)
                turns[own].append(statistics.median(watch.epochs))
                if own == "local":
                    shares.append(sum(watch.rollouts) / sum(watch.updates))
        best = {own: min(times) for own, times in turns.items()}
        ratio, share = best["local"] / best[source], statistics.median(shares)
        kept = "" if ratio >= PROMISE else ", promise not kept"
        table.add(
            [name, f"{share:.2f}", *map(format_seconds, best.values()), f"{ratio:.2f}{kept}"],
            kind=name, share=share, ratio=ratio, turns=turns,
        )  # fmt: skip
    return table


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose steps take 5 ms."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return self.env.step(action)


def ray_workers() -> Table:
    """Rollouts of one and of two Ray workers, which take turns, without a learner."""
    table = Table(
        "Two Ray workers beside one, on steps of 5 ms",
        f"at least {RAY_PROMISE} times as many rollouts; at most {DRIVER_PROMISE * 1000:g} ms of driver time for each",
        ["workers", "rollouts a second", "times one", "CPU time of the driver, a rollout"],
    )
    lesson = Lesson("pole", lambda: Slow(gymnasium.make("CartPole-v1")))
    lessons = CurriculumConfig([lesson], eval_frequency=None, micro_eval_frequency=None)
    policy = MLPPolicy(4, Discrete(2))
    sources = {}
    for count in (1, 2):
        worker = RolloutWorker(RolloutWorkerConfig(lessons, policy, num_environments=1, steps_per_rollout=64))
        sources[count] = build_ray(SourceRequest(worker, workers=count, max_staleness=0))  # nothing is made ahead
        sources[count].publish(policy.initial_weights(0), 0)
        sources[count].next(4 * count)
    rates, driver = dict.fromkeys(sources, 0.0), dict.fromkeys(sources, math.inf)
    for _ in range(TURNS):
        for count, source in sources.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            rollouts = len(source.next(RAY_ROLLOUTS))
            rates[count] = max(rates[count], rollouts / (time.perf_counter() - began))
            driver[count] = min(driver[count], (time.process_time() - cpu_began) / rollouts)
    for count, source in sources.items():
        source.close()
        ratio = rates[count] / rates[1]
        is_kept = driver[count] <= DRIVER_PROMISE and (count == 1 or ratio >= RAY_PROMISE)
        table.add(
            [str(count), f"{rates[count]:.1f}", f"{ratio:.2f}{'' if is_kept else ', promise not kept'}",
             format_seconds(driver[count])],
            workers=count, rate=rates[count], ratio=ratio, driver=driver[count],
        )  # fmt: skip
    return table


if __name__ == "__main__":
    json_file = json_option(__doc__)
    report(describe_machine("torch", "jax", "ray"), [beside_local("ahead"), ray_workers()], json_file)
