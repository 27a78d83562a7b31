"""Environment steps per second of rollouts, over environments and batches.

    python benchmarks/rollout.py [--json FILE]

Each rollout is what a trainer gets: observations, actions, log-probabilities, values and bootstrapped values as NumPy
arrays. The baseline is what most training scripts do: Gymnasium's vector of environments, and a torch policy of the
same size called at every step. torch has one thread; JAX takes what it finds. It takes about two minutes.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from timeit import Timer
from typing import Any, Final

import gymnasium
import torch
from measuring import Table, best_of_rounds, describe_machine, format_seconds, json_option, report

from hookline import PluginManager
from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline_environments import Environments

STEPS: Final = 128
BATCHES: Final = (8, 64, 512)
ENVIRONMENTS: Final = {
    "CartPole-v1": "JAX, one scan",
    "gymnax:CartPole-v1": "gymnax, one scan",
    "gymnax:Breakout-MinAtar": "gymnax, one scan",
    "gymnasium:CartPole-v1": "Gymnasium",
    "gymnasium:Pendulum-v1": "Gymnasium, continuous",
}

Rollout = Callable[[], object]


def worker_rollout(environment: str, batch: int) -> Rollout:
    curriculum = CurriculumConfig([Lesson("lesson", environment)], eval_frequency=None, micro_eval_frequency=None)
    plugins = PluginManager()
    plugins.register(Environments(), "environments")
    worker = RolloutWorker(RolloutWorkerConfig(curriculum, num_environments=batch, steps_per_rollout=STEPS), plugins)
    return worker.rollout


def hand_written_rollout(batch: int) -> Rollout:
    """The loop of a training script."""
    environments = gymnasium.make_vec("CartPole-v1", num_envs=batch, vectorization_mode="sync")
    module = MLPPolicy(4, Discrete(2)).torch_module()
    last, _ = environments.reset(seed=0)

    @torch.inference_mode()
    def rollout() -> list[tuple[Any, ...]]:
        nonlocal last
        record = []
        for _ in range(STEPS):
            logits, values = module(torch.as_tensor(last))
            all_logprobs = logits.log_softmax(-1)
            actions = torch.multinomial(all_logprobs.exp(), 1)
            obs, rewards, terminated, truncated, _ = environments.step(actions[:, 0].numpy())
            logprobs = all_logprobs.gather(1, actions)[:, 0]
            record.append(
                (last, actions[:, 0].numpy(), logprobs.numpy(), values.numpy(), rewards, terminated, truncated)
            )
            last = obs
        return record

    return rollout


def seconds_of(contenders: dict[str, Rollout]) -> dict[str, float]:
    for rollout in contenders.values():
        rollout()  # compiles
    return best_of_rounds({name: Timer(run) for name, run in contenders.items()}, rounds=6, round_seconds=0.05)


def steps_per_second() -> Table:
    table = Table(
        f"Rollouts of {STEPS} steps with a policy of 2 x 64, environment steps per second",
        "none of its own: rollouts are a part of the promise about PPO",
        ["environment", "how", *(f"batch {batch}" for batch in BATCHES), "x by hand"],
    )
    rates: dict[str, dict[int, float]] = {}
    for batch in BATCHES:
        contenders = {"by hand": hand_written_rollout(batch)}
        contenders |= {name: worker_rollout(name, batch) for name in ENVIRONMENTS if _is_installed(name)}
        for name, seconds in seconds_of(contenders).items():
            rates.setdefault(name, {})[batch] = batch * STEPS / seconds
    for name, by_batch in rates.items():
        ratios = [by_batch[batch] / rates["by hand"][batch] for batch in BATCHES]
        same_task = name.endswith("CartPole-v1")
        table.add(
            [
                "CartPole-v1 by hand" if name == "by hand" else name,
                ENVIRONMENTS.get(name, "Gymnasium and torch"),
                *(f"{by_batch[batch]:,.0f}" for batch in BATCHES),
                " / ".join(f"{ratio:.1f}" for ratio in ratios) if same_task else "-",
            ],
            environment=name,
            steps_per_second=by_batch,
            of_by_hand=ratios if same_task else [math.nan] * len(BATCHES),
        )
    if not _is_installed("gymnax:"):
        table.remarks.append(
            'gymnax is not installed: pip install "hookline-environments[gymnax]" to measure its environments'
        )
    return table


def hand_overs() -> Table:
    """What it costs to give the worker the trainer's weights."""
    worker = RolloutWorker(RolloutWorkerConfig())
    module = worker.policy.torch_module()
    parameters = dict(module.named_parameters())
    seconds = best_of_rounds({"torch": Timer(lambda: worker.update_weights(parameters, 1))}, rounds=50)
    table = Table("Handing weights over from torch", "none of its own", ["policy", "time"])
    table.add(["2 x 64", format_seconds(seconds["torch"])], seconds=seconds["torch"])
    return table


def _is_installed(environment: str) -> bool:
    return not environment.startswith("gymnax:") or importlib.util.find_spec("gymnax") is not None


if __name__ == "__main__":
    json_file = json_option(__doc__)
    torch.set_num_threads(1)
    report(describe_machine("jax", "gymnasium", "gymnax", "torch"), [steps_per_second(), hand_overs()], json_file)
