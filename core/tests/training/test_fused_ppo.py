"""The hand-written PPO step beside autograd's, over random shapes, losses and optimizers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hookline import PluginManager
from hookline.policies import Discrete, MLPPolicy
from hookline.policies.mlp_torch import ActorCritic
from hookline.training import OptimizerConfig
from hookline.training.learner.data_parallel import Replicas
from hookline.training.learner.fused_ppo import FlatAdam, FusedPPO, fused_ppo
from hookline.training.learner.learner import AutogradUpdate, LearnerConfig
from hookline.training.losses.registry import build_losses
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

STATE = TrainerState(epoch=1, total_epochs=4)
ADAM = OptimizerConfig("adam", learning_rate=1e-2)


def module_of(seed: int, hidden: tuple[int, ...] = (8,), actions: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    """A module whose weights are nowhere zero."""
    policy = MLPPolicy(3, Discrete(actions), hidden)
    generator = np.random.default_rng(seed)
    weights = {
        name: (array + 0.3 * generator.standard_normal(array.shape)).astype(np.float32)
        for name, array in policy.initial_weights().items()
    }
    return policy.torch_module(weights).to(dtype)


def rows_of(seed: int, rows: int, actions: int = 4, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = ("advantages", "returns", "values", "logprobs")
    batch = {name: torch.randn(rows, generator=generator, dtype=dtype) for name in names}
    batch["logprobs"] = 0.4 * batch["logprobs"] - float(np.log(actions))  # some ratios are clipped on either side
    batch["obs"] = torch.randn(rows, 3, generator=generator, dtype=dtype)
    batch["actions"] = torch.randint(actions, (rows,), generator=generator, dtype=torch.int32)
    return batch


LOSSES = st.lists(st.sampled_from(["ppo_actor", "ppo_critic"]), min_size=1, unique=True).flatmap(
    lambda names: st.fixed_dictionaries(
        {
            name: st.fixed_dictionaries(
                {
                    "weight": st.floats(0.1, 2),
                    "clip": st.sampled_from([0.05, 0.2] if name == "ppo_actor" else [0.2, None]),
                }
                | (
                    {
                        "entropy": st.sampled_from([0.0, 0.1]),
                        "normalize_advantages": st.booleans(),
                        "anneal_clip": st.booleans(),
                    }
                    if name == "ppo_actor"
                    else {}
                )
            )
            for name in names
        }
    )
)


@given(
    seed=st.integers(0, 2**31),
    hidden=st.lists(st.integers(1, 12), max_size=3).map(tuple),
    actions=st.integers(2, 5),
    rows=st.integers(1, 20),
    losses=LOSSES,
    dtype=st.sampled_from([torch.float32, torch.float64]),
    is_stale=st.booleans(),
)
def test_losses_and_gradients_are_those_of_autograd(
    seed: int, hidden: tuple[int, ...], actions: int, rows: int, losses: Any, dtype: torch.dtype, is_stale: bool
) -> None:
    own = build_losses(losses, PluginManager())
    batch = rows_of(seed, rows, actions, dtype)
    if is_stale:
        batch["proximal_logprobs"] = batch["logprobs"] + 0.5 * batch["values"]
    plain_module, module = (module_of(seed, hidden, actions, dtype) for _ in range(2))
    update = AutogradUpdate(plain_module, ADAM, LearnerConfig(), Replicas(plain_module, Ranks()))
    plain = update.gradient(own, batch, STATE, None)
    by_hand = fused_ppo(module, own, ADAM)
    assert by_hand is not None
    fast = by_hand.gradient(own, batch, STATE, None)

    tolerance = {"atol": 1e-9, "rtol": 1e-7} if dtype == torch.float64 else {"atol": 2e-5, "rtol": 1e-3}
    torch.testing.assert_close(torch.tensor(fast.values), torch.as_tensor(plain.values).float(), atol=1e-4, rtol=1e-4)
    assert fast.norm == pytest.approx(float(plain.norm), rel=1e-3, abs=1e-5)
    assert {k: float(v) for k, v in fast.stats.items()} == pytest.approx(
        {k: float(v) for k, v in plain.stats.items()}, abs=1e-4
    )
    for found, wanted in zip(module.parameters(), plain_module.parameters(), strict=True):
        expected = torch.zeros_like(found) if wanted.grad is None else wanted.grad
        torch.testing.assert_close(found.grad, expected, **tolerance)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_its_optimizer_is_that_of_torch_bit_for_bit_and_reads_its_state(name: str) -> None:
    options = {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    config = OptimizerConfig(name, learning_rate=1e-2, options=options)
    generator = torch.Generator().manual_seed(0)
    one, other = module_of(0), module_of(0)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    torchs = kind(other.parameters(), lr=1e-2, fused=True, **options)
    flat = FlatAdam(list(one.parameters()), config)
    for step in range(6):
        if step == 2:  # a new one goes on from what it would save, and from what torch's would
            saved = flat.state_dict()
            flat = FlatAdam(list(one.parameters()), OptimizerConfig(name))
            flat.load_state_dict(saved)
        if step == 4:
            flat.load_state_dict(torchs.state_dict())
            torchs.load_state_dict(copy.deepcopy(flat.state_dict()))
        for left, right in zip(one.parameters(), other.parameters(), strict=True):
            left.grad.copy_(torch.randn(left.shape, generator=generator))
            right.grad = left.grad.clone()
        for optimizer in (flat, torchs):
            optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
            optimizer.step()
        for left, right in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(left, right)


class Squashed(ActorCritic):
    def forward(self, obs: Tensor) -> Any:
        return super().forward(obs.tanh())


def test_what_it_does_not_know_is_left_to_autograd() -> None:
    policy = MLPPolicy(3, Discrete(2), (4,))
    own = build_losses({"ppo_actor": {}, "ppo_critic": {}}, PluginManager())
    assert isinstance(fused_ppo(policy.torch_module(), own, ADAM), FusedPPO)
    assert fused_ppo(Squashed(policy, policy.initial_weights()), own, ADAM) is None
    assert fused_ppo(policy.torch_module().bfloat16(), own, ADAM) is None
    assert fused_ppo(policy.torch_module(), own, OptimizerConfig("sgd")) is None
    assert fused_ppo(policy.torch_module(), own, OptimizerConfig("adam", options={"amsgrad": True})) is None
    assert fused_ppo(policy.torch_module(), build_losses({"kl": {"of": "actions"}}, PluginManager()), ADAM) is None
    frozen = policy.torch_module()
    frozen.actor[0].weight.requires_grad_(False)
    assert fused_ppo(frozen, own, ADAM) is None
