"""The gradient of the MLP that is written by hand, beside autograd's of the module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.policies import Continuous, Discrete, MLPPolicy
from hookline.policies.mlp_torch import ActorCritic


def trained_looking(policy: MLPPolicy, seed: int) -> ActorCritic:
    """A module whose weights are nowhere zero, with gradients to add to."""
    generator = np.random.default_rng(seed)
    weights = {
        name: array + 0.3 * generator.standard_normal(array.shape) for name, array in policy.initial_weights().items()
    }
    module = policy.torch_module({name: array.astype(np.float32) for name, array in weights.items()})
    module.zero_grad()
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return module


def rows(policy: MLPPolicy, count: int, seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(count, policy.observation_size, generator=generator, dtype=dtype)
    return obs, torch.randint(policy.action_outputs, (count,), generator=generator, dtype=torch.int32)


def some_loss(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Depends on all three results, on each row in its own way."""
    return sum((result * torch.arange(1.0, len(result) + 1).sin()).sum() * (k + 1) for k, result in enumerate(results))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    hidden=st.lists(st.integers(1, 12), max_size=3).map(tuple),
    actions=st.integers(2, 5),
    double=st.booleans(),
)
def test_results_and_gradients_are_those_of_autograd(
    seed: int, hidden: tuple[int, ...], actions: int, double: bool
) -> None:
    policy = MLPPolicy(3, Discrete(actions), hidden)
    module = trained_looking(policy, seed)
    dtype, tolerance = (torch.float64, 1e-10) if double else (torch.float32, 2e-4)
    module = module.to(dtype)
    obs, taken = rows(policy, 7, seed, dtype)

    expected = module.evaluate_actions(obs, taken)
    wanted = torch.autograd.grad(some_loss(expected), list(module.parameters()))

    by_hand = module.evaluation_by_hand()
    assert by_hand is not None
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)  # what is there already is added to
    results, pull_back = by_hand(obs, taken)
    some_loss(results).backward()
    pull_back()
    for found, value in zip(results, expected, strict=True):
        torch.testing.assert_close(found.detach(), value.detach(), atol=tolerance, rtol=tolerance)
    for parameter, gradient in zip(module.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad - 1, gradient, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("used", [0, 1, 2], ids=["logprobs", "entropy", "values"])
def test_a_result_that_no_loss_uses_has_no_gradient(used: int) -> None:
    policy = MLPPolicy(3, Discrete(2), (4,))
    module = trained_looking(policy, 0)
    obs, taken = rows(policy, 5, 0, torch.float32)
    wanted = torch.autograd.grad(
        module.evaluate_actions(obs, taken)[used].sum(), list(module.parameters()), allow_unused=True
    )
    results, pull_back = module.evaluation_by_hand()(obs, taken)
    results[used].sum().backward()
    pull_back()
    for parameter, gradient in zip(module.parameters(), wanted, strict=True):
        expected = torch.zeros_like(parameter) if gradient is None else gradient
        torch.testing.assert_close(parameter.grad, expected, atol=1e-5, rtol=1e-4)


class Squashed(ActorCritic):
    def forward(self, obs: torch.Tensor) -> Any:
        return super().forward(obs.tanh())


def test_what_the_hand_does_not_know_is_left_to_autograd() -> None:
    discrete = MLPPolicy(3, Discrete(2), (4,))
    assert MLPPolicy(3, Continuous(2), (4,)).torch_module().evaluation_by_hand() is None
    assert Squashed(discrete, discrete.initial_weights()).evaluation_by_hand() is None
    assert discrete.torch_module().bfloat16().evaluation_by_hand() is None
    frozen = discrete.torch_module()
    frozen.actor[0].weight.requires_grad_(False)
    assert frozen.evaluation_by_hand() is None
