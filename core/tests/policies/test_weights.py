"""Weights cross between frameworks as flat dictionaries of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hookline.errors import HooklineError
from hookline.policies import (
    Continuous,
    Discrete,
    MLPPolicy,
    TransformerPolicy,
    WeightsError,
    check_weights,
    to_jax,
    to_numpy,
)

POLICIES = [MLPPolicy(4, Discrete(2)), MLPPolicy(3, Continuous(2)), TransformerPolicy(vocabulary=11, width=16, heads=2)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_the_torch_module_has_the_names_and_shapes_of_the_specification(policy) -> None:
    parameters = {name: tuple(value.shape) for name, value in policy.torch_module().named_parameters()}
    assert parameters == policy.shapes()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_weights_come_back_from_torch_and_jax_as_they_went(policy) -> None:
    weights = policy.initial_weights(seed=7)
    through_torch = to_numpy(dict(policy.torch_module(weights).named_parameters()))
    through_jax = to_numpy(to_jax(weights))
    for name in policy.shapes():
        np.testing.assert_array_equal(weights[name], through_torch[name])
        np.testing.assert_array_equal(weights[name], through_jax[name])


def test_one_seed_gives_one_set_of_weights() -> None:
    policy = POLICIES[0]
    assert all((policy.initial_weights(1)[n] == a).all() for n, a in policy.initial_weights(1).items())
    assert any((policy.initial_weights(2)[n] != a).any() for n, a in policy.initial_weights(1).items())


def test_jax_keeps_its_weights_when_torch_goes_on_updating_its_own_in_place() -> None:
    tensor = torch.ones(3)
    arrays = to_jax({"w": tensor})
    tensor.add_(1)
    assert arrays["w"].tolist() == [1, 1, 1]


def test_weights_from_torch_and_from_numpy_compile_to_one_program() -> None:
    compiled = []

    @jax.jit
    def double(weights):
        compiled.append(1)
        return jax.tree.map(lambda w: 2 * w, weights)

    double(to_jax({"w": np.ones(3, np.float32)}))
    double(to_jax({"w": torch.ones(3)}))
    double(to_jax({"w": jnp.ones(3)}))
    assert double._cache_size() == 1
    assert len(compiled) == 1


def test_all_that_is_wrong_with_weights_is_said_at_once() -> None:
    policy = MLPPolicy(4, Discrete(2), hidden=(8,))
    weights = policy.initial_weights()
    weights["actor.0.wieght"] = weights.pop("actor.0.weight")
    weights["critic.1.bias"] = np.zeros(3, np.float32)
    with pytest.raises(WeightsError) as caught:
        check_weights(weights, policy.shapes())
    message = str(caught.value)
    assert "actor.0.weight is missing (did you mean 'actor.0.wieght'?)" in message
    assert "actor.0.wieght is unknown (did you mean 'actor.0.weight'?)" in message
    assert "critic.1.bias has shape (3,), the policy needs (1,)" in message


def test_a_width_that_the_heads_do_not_divide_is_an_error() -> None:
    with pytest.raises(HooklineError, match="width 30 cannot be divided among 4 heads"):
        TransformerPolicy(vocabulary=10, width=30, heads=4)
