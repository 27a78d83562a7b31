"""The torch and the JAX forward of one policy give the same log-probabilities."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.policies import Continuous, Discrete, MLPPolicy, TransformerPolicy, actor_jax, to_jax, transformer_jax
from hookline.policies.forward_torch import chosen_logprobs, control_policy
from hookline.policies.protocol import PolicyError

TOLERANCE = 1e-5

seeds = st.integers(0, 2**32 - 1)


def random_weights(policy: MLPPolicy | TransformerPolicy, seed: int, scale: float) -> dict[str, np.ndarray]:
    """Weights that are nowhere zero, so that every one of them has a say."""
    generator = np.random.default_rng(seed)
    return {
        name: (array + scale * generator.standard_normal(array.shape)).astype(np.float32)
        for name, array in policy.initial_weights(seed).items()
    }


def mlp_difference(policy: MLPPolicy, weights: dict[str, np.ndarray], module: torch.nn.Module, seed: int) -> float:
    generator = np.random.default_rng(seed)
    obs = generator.standard_normal((16, policy.observation_size)).astype(np.float32)
    if isinstance(policy.actions, Discrete):
        actions = generator.integers(policy.actions.n, size=16)
    else:
        actions = generator.standard_normal((16, policy.actions.size)).astype(np.float32)
    arrays = to_jax(weights)
    outputs, values = policy.jax_forward(arrays, obs)
    logprobs = actor_jax.log_prob(policy.actions, arrays, outputs, actions)
    with torch.no_grad():
        torch_logprobs, _, torch_values = control_policy(module).evaluate_actions(
            torch.from_numpy(obs), torch.from_numpy(actions)
        )
    assert values.shape == torch_values.shape == (16,)
    return max(
        float(np.abs(np.asarray(logprobs) - torch_logprobs.numpy()).max()),
        float(np.abs(np.asarray(values) - torch_values.numpy()).max()),
    )


def transformer_difference(
    policy: TransformerPolicy, weights: dict[str, np.ndarray], module: torch.nn.Module, seed: int
) -> float:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(policy.vocabulary, size=(4, 12))
    valid = np.arange(12) >= generator.integers(6, size=(4, 1))
    logprobs = jax.jit(transformer_jax.token_logprobs, static_argnums=0)(policy, to_jax(weights), tokens, valid)
    with torch.no_grad():
        torch_logprobs = module.token_logprobs(torch.from_numpy(tokens), torch.from_numpy(valid))
    both_are_text = valid[:, :-1] & valid[:, 1:]
    return float(np.abs(np.asarray(logprobs) - torch_logprobs.numpy())[both_are_text].max())


@settings(max_examples=25, deadline=None)
@given(seed=seeds, scale=st.floats(0.0, 0.3), discrete=st.booleans())
def test_the_mlp_has_the_same_logprobs_and_values_in_both_frameworks(seed: int, scale: float, discrete: bool) -> None:
    policy = MLPPolicy(5, Discrete(3) if discrete else Continuous(2), hidden=(16, 16))
    weights = random_weights(policy, seed, scale)
    assert mlp_difference(policy, weights, policy.torch_module(weights), seed) <= TOLERANCE


@settings(max_examples=25, deadline=None)
@given(seed=seeds, scale=st.floats(0.0, 0.1))
def test_the_transformer_has_the_same_logprobs_in_both_frameworks(seed: int, scale: float) -> None:
    policy = TransformerPolicy(vocabulary=19, width=32, layers=2, heads=4, context=16)
    weights = random_weights(policy, seed, scale)
    assert transformer_difference(policy, weights, policy.torch_module(weights), seed) <= TOLERANCE


@pytest.mark.parametrize("actions", [Discrete(2), Continuous(2)], ids=["discrete", "continuous"])
def test_the_mlp_agrees_on_weights_that_torch_has_trained(actions: Discrete | Continuous) -> None:
    policy = MLPPolicy(4, actions)
    module = policy.torch_module()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(50):
        obs = torch.randn(64, 4, generator=generator)
        taken = (obs[:, 0] > 0).long() if isinstance(actions, Discrete) else obs[:, :2].sin()
        logprobs, entropy, values = control_policy(module).evaluate_actions(obs, taken)
        loss = -logprobs.mean() - 0.01 * entropy.mean() + (values - obs.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained = dict(module.state_dict())
    assert not torch.equal(before["actor.0.weight"], trained["actor.0.weight"])
    assert mlp_difference(policy, trained, module, seed=1) <= TOLERANCE


def test_the_transformer_agrees_on_weights_that_torch_has_trained() -> None:
    policy = TransformerPolicy(vocabulary=19, width=32, layers=2, heads=4, context=16)
    module = policy.torch_module()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.003)
    tokens = (torch.arange(8)[:, None] + torch.arange(12)[None]) % 19
    first = -module.token_logprobs(tokens).mean().item()
    for _ in range(60):
        loss = -module.token_logprobs(tokens).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < first / 2
    assert transformer_difference(policy, dict(module.state_dict()), module, seed=1) <= TOLERANCE


def test_padding_on_the_left_changes_nothing_for_the_text_after_it() -> None:
    policy = TransformerPolicy(vocabulary=19, width=32, layers=2, heads=4, context=16)
    weights = to_jax(policy.initial_weights(3))
    tokens = np.arange(2, 10)[None]
    padded = np.concatenate([np.zeros((1, 4), int), tokens], axis=1)
    forward = jax.jit(transformer_jax.forward, static_argnums=0)
    plain = forward(policy, weights, tokens)
    with_padding = forward(policy, weights, padded, padded > 0)
    np.testing.assert_allclose(plain, with_padding[:, 4:], atol=1e-5)


def test_log_probabilities_of_chosen_tokens_have_the_gradient_of_a_log_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    chosen = torch.randint(7, (2, 3), generator=generator)
    temperature = torch.rand(2, 3, dtype=torch.float64, generator=generator) + 0.5
    weights = torch.randn(2, 3, dtype=torch.float64, generator=generator)

    def plain() -> torch.Tensor:
        return (logits / temperature[..., None]).log_softmax(-1).gather(-1, chosen[..., None]).squeeze(-1)

    found, expected = chosen_logprobs(logits, chosen, temperature), plain()
    torch.testing.assert_close(found, expected)
    own, other = (torch.autograd.grad((weights * each).sum(), logits)[0] for each in (found, expected))
    torch.testing.assert_close(own, other)


def test_a_second_derivative_of_log_probabilities_is_an_error() -> None:
    logits = torch.randn(3, 7, requires_grad=True)
    logprobs = chosen_logprobs(logits, torch.arange(3))
    with pytest.raises(PolicyError, match="have no second derivative: compute their gradient without create_graph"):
        torch.autograd.grad(logprobs.sum(), logits, create_graph=True)


def test_logits_in_bfloat16_are_summed_in_float32() -> None:
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    chosen = torch.arange(4)
    expected = logits.double().log_softmax(-1).gather(1, chosen[:, None])[:, 0]
    torch.testing.assert_close(chosen_logprobs(logits, chosen), expected.float())
