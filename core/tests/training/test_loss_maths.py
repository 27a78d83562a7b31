"""The losses beside plain references, written out step by step in Python numbers; gradients by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookline import PluginManager
from hookline.policies import Discrete, MLPPolicy, TransformerPolicy
from hookline.training.experience import Experience
from hookline.training.losses import Loss, SharedLossData
from hookline.training.losses.gae import generalized_advantages
from hookline.training.losses.grpo import group_advantages
from hookline.training.losses.kl import kl_estimate
from hookline.training.losses.registry import build_losses
from hookline_hookspecs import TrainerState

STATE = TrainerState(epoch=1, total_epochs=4)


def loss_of(name: str, **options: Any) -> Loss:
    (loss,) = build_losses({name: options}, PluginManager())
    return loss


def value_of(loss: Loss, policy: Any, batch: Mapping[str, Tensor]) -> Tensor:
    return loss.run_train(SharedLossData(STATE, policy, batch))


def assert_same_gradients(policy: nn.Module, value: Callable[[], Tensor], reference: Callable[[], float]) -> None:
    """The gradient that torch finds beside central differences of the reference, parameter by parameter."""
    policy.zero_grad()
    value().backward()
    generator = np.random.default_rng(0)
    for name, parameter in policy.named_parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad
        found = torch.zeros_like(parameter) if gradient is None else gradient
        for index in generator.choice(flat.numel(), size=min(4, flat.numel()), replace=False).tolist():
            before = flat[index].item()
            with torch.no_grad():
                flat[index] = before + 1e-5
                above = reference()
                flat[index] = before - 1e-5
                below = reference()
                flat[index] = before
            assert found.view(-1)[index].item() == pytest.approx((above - below) / 2e-5, abs=1e-6, rel=1e-4), name


# -- control ------------------------------------------------------------------------------------------------------


@pytest.fixture
def actor_critic() -> Any:
    return MLPPolicy(3, Discrete(4), hidden=(5,)).torch_module().double()


@pytest.fixture
def control_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "obs": normal(12, 3),
        "actions": torch.randint(4, (12,), generator=generator, dtype=torch.int32),
        # Far from the policy's own, so that some ratios are clipped on either side.
        "logprobs": -1.4 + 0.5 * normal(12),
        "advantages": normal(12),
        "returns": 2 * normal(12),
        "values": normal(12),
    }


def plain_perceptron(policy: Any, network: str, obs: Sequence[float]) -> list[float]:
    x = list(obs)
    layers = getattr(policy, network)
    for number, layer in enumerate(layers):
        weight, bias = layer.weight.tolist(), layer.bias.tolist()
        x = [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        if number < len(layers) - 1:
            x = [math.tanh(v) for v in x]
    return x


def plain_softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    exponentials = [math.exp(logit - largest) for logit in logits]
    return [e / sum(exponentials) for e in exponentials]


def plain_ppo_actor(policy: Any, batch: Mapping[str, Tensor], clip: float, entropy: float, normalize: bool) -> float:
    advantages = batch["advantages"].tolist()
    if normalize:
        mean = sum(advantages) / len(advantages)
        std = math.sqrt(sum((a - mean) ** 2 for a in advantages) / (len(advantages) - 1))
        advantages = [(a - mean) / (std + 1e-8) for a in advantages]
    total = 0.0
    for row, advantage in enumerate(advantages):
        p = plain_softmax(plain_perceptron(policy, "actor", batch["obs"][row].tolist()))
        old = math.exp(batch["logprobs"][row])
        proximal = math.exp(batch["proximal_logprobs"][row]) if "proximal_logprobs" in batch else old
        ratio = p[int(batch["actions"][row])] / proximal
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        total -= min(proximal / old, 2.0) * min(ratio * advantage, clipped * advantage)
        total -= entropy * -sum(q * math.log(q) for q in p)
    return total / len(advantages)


@pytest.mark.parametrize("is_stale", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("clip", [0.2, 0.05])
def test_ppo_actor_is_the_clipped_surrogate(
    actor_critic: Any, control_batch: dict[str, Tensor], clip: float, normalize: bool, is_stale: bool
) -> None:
    if is_stale:
        control_batch["proximal_logprobs"] = -1.4 + 0.3 * control_batch["values"]
    loss = loss_of("ppo_actor", clip=clip, entropy=0.03, normalize_advantages=normalize)

    def reference() -> float:
        return plain_ppo_actor(actor_critic, control_batch, clip, 0.03, normalize)

    assert value_of(loss, actor_critic, control_batch).item() == pytest.approx(reference(), abs=1e-12)
    assert_same_gradients(actor_critic, lambda: value_of(loss, actor_critic, control_batch), reference)


def test_a_clip_that_is_annealed_narrows_with_the_epochs(actor_critic: Any, control_batch: dict[str, Tensor]) -> None:
    annealed = value_of(loss_of("ppo_actor", clip=0.2, anneal_clip=True), actor_critic, control_batch)
    three_quarters = value_of(loss_of("ppo_actor", clip=0.15), actor_critic, control_batch)  # in epoch 1 of 4
    assert annealed.item() == pytest.approx(three_quarters.item(), abs=1e-12)


def test_a_clipped_ratio_gives_no_gradient(actor_critic: Any, control_batch: dict[str, Tensor]) -> None:
    batch = {**control_batch, "logprobs": torch.full((12,), -9.0).double(), "advantages": torch.ones(12).double()}
    loss = loss_of("ppo_actor", entropy=0.0, normalize_advantages=False)
    value_of(loss, actor_critic, batch).backward()
    assert all(not parameter.grad.any() for parameter in actor_critic.actor.parameters())


def plain_ppo_critic(policy: Any, batch: Mapping[str, Tensor], clip: float | None) -> float:
    total = 0.0
    for row in range(len(batch["returns"])):
        (value,) = plain_perceptron(policy, "critic", batch["obs"][row].tolist())
        target, old = float(batch["returns"][row]), float(batch["values"][row])
        error = (value - target) ** 2
        if clip is not None:
            moved = old + min(max(value - old, -clip), clip)
            error = max(error, (moved - target) ** 2)
        total += 0.5 * error
    return total / len(batch["returns"])


@pytest.mark.parametrize("clip", [None, 0.2])
def test_ppo_critic_is_the_clipped_squared_error(
    actor_critic: Any, control_batch: dict[str, Tensor], clip: float | None
) -> None:
    loss = loss_of("ppo_critic", clip=clip)

    def reference() -> float:
        return plain_ppo_critic(actor_critic, control_batch, clip)

    assert value_of(loss, actor_critic, control_batch).item() == pytest.approx(reference(), abs=1e-12)
    assert_same_gradients(actor_critic, lambda: value_of(loss, actor_critic, control_batch), reference)


def plain_gae(
    rewards: Any, values: Any, next_values: Any, terminated: Any, truncated: Any, gamma: float, lam: float
) -> list[list[float]]:
    """By the definition: the sum of discounted temporal differences up to the end of the episode or of the grid."""
    steps, environments = len(rewards), len(rewards[0])
    advantages = [[0.0] * environments for _ in range(steps)]
    for column in range(environments):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                following = 0.0 if terminated[k][column] else next_values[k][column]
                advantages[t][column] += weight * (rewards[k][column] + gamma * following - values[k][column])
                if terminated[k][column] or truncated[k][column]:
                    break
                weight *= gamma * lam
    return advantages


def test_gae_bootstraps_a_truncated_episode_and_not_a_terminated_one() -> None:
    generator = np.random.default_rng(0)
    rewards, values, following = (generator.normal(size=(9, 3)).astype(np.float32) for _ in range(3))
    terminated, truncated = np.zeros((9, 3), bool), np.zeros((9, 3), bool)
    terminated[3, 0] = truncated[5, 1] = truncated[2, 2] = terminated[7, 2] = True
    next_values = np.where(terminated, 0, following).astype(np.float32)
    arrays = (rewards, values, next_values, terminated | truncated)
    found = generalized_advantages(*map(torch.from_numpy, arrays), 0.97, 0.9).numpy()
    expected = plain_gae(rewards, values, following, terminated, truncated, 0.97, 0.9)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # One step, cut short: all that is known of what would have followed is its value.
    assert found[2, 2] == pytest.approx(rewards[2, 2] + 0.97 * following[2, 2] - values[2, 2], abs=1e-6)


def test_the_critic_puts_advantages_and_returns_into_the_experience() -> None:
    losses = build_losses({"ppo_actor": {}, "ppo_critic": {"gamma": 0.9, "gae_lambda": 0.8}}, PluginManager())
    experience = Experience(losses)
    generator = torch.Generator().manual_seed(0)
    arrays = {name: torch.randn(6, 2, generator=generator) for name in ("rewards", "values", "next_values", "logprobs")}
    arrays |= {"obs": torch.zeros(6, 2, 3), "actions": torch.zeros(6, 2, dtype=torch.int32)}
    arrays |= {"terminated": torch.zeros(6, 2, dtype=torch.bool), "truncated": torch.zeros(6, 2, dtype=torch.bool)}
    experience.fill(arrays, (6, 2))
    for loss in losses:
        loss.rollout(SharedLossData(STATE, None, experience=experience), steps=1)
    grids = [arrays[name].tolist() for name in ("rewards", "values", "next_values", "terminated", "truncated")]
    expected = torch.tensor(plain_gae(*grids, 0.9, 0.8))
    torch.testing.assert_close(experience["advantages"], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(experience["returns"], expected + arrays["values"], atol=1e-5, rtol=0)


def test_stale_rows_get_the_values_and_the_probabilities_of_the_policy_at_the_start_of_the_epoch(
    actor_critic: Any,
) -> None:
    losses = build_losses({"ppo_actor": {}, "ppo_critic": {"gamma": 0.9, "gae_lambda": 0.8}}, PluginManager())
    experience = Experience(losses)
    policy = actor_critic.float()
    generator = torch.Generator().manual_seed(0)
    arrays = {name: torch.randn(5, 2, generator=generator) for name in ("rewards", "values", "next_values", "logprobs")}
    arrays |= {"obs": torch.randn(5, 2, 3, generator=generator), "actions": torch.ones(5, 2, dtype=torch.int32)}
    terminated, truncated = torch.zeros(5, 2, dtype=torch.bool), torch.zeros(5, 2, dtype=torch.bool)
    terminated[1, 0] = truncated[2, 1] = True
    arrays["next_values"][1, 0] = 0.0
    experience.fill({**arrays, "terminated": terminated, "truncated": truncated}, (5, 2), is_stale=True)
    shared = SharedLossData(STATE, policy, experience=experience)
    with torch.no_grad():
        for loss in losses:
            loss.rollout(shared, steps=1)
        logits, values = policy(arrays["obs"])
    torch.testing.assert_close(experience["proximal_logprobs"], logits.log_softmax(-1)[..., 1])
    # What followed an end or the last step is not in the rows.
    following = arrays["next_values"].clone()
    following[:-1] = values[1:]
    following[1, 0], following[2, 1] = 0.0, arrays["next_values"][2, 1]
    grids = [own.tolist() for own in (arrays["rewards"], values, following, terminated, truncated)]
    expected = torch.tensor(plain_gae(*grids, 0.9, 0.8))
    torch.testing.assert_close(experience["advantages"], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(experience["returns"], expected + values, atol=1e-5, rtol=0)


# -- text ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def transformer() -> Any:
    policy = TransformerPolicy(vocabulary=7, width=8, layers=1, heads=2, context=8)
    generator = np.random.default_rng(0)
    weights = {name: generator.normal(0, 0.3, shape) for name, shape in policy.shapes().items()}
    module = policy.torch_module({name: array.astype(np.float32) for name, array in weights.items()})
    return module.double()


@pytest.fixture
def text_batch() -> dict[str, Tensor]:
    """Prompts padded on the left, responses on the right."""
    tokens = torch.tensor([[0, 2, 3, 4, 1, 0], [5, 2, 6, 1, 0, 0], [0, 0, 4, 5, 6, 3], [3, 3, 2, 5, 4, 1]])
    valid = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
    loss_mask = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]]).bool()
    generator = torch.Generator().manual_seed(0)
    return {
        "tokens": tokens,
        "valid": valid,
        "loss_mask": loss_mask,
        "logprobs": -2.0 + 0.3 * torch.randn(4, 5, generator=generator, dtype=torch.float64),
        "temperature": torch.tensor([0.7, 1.0, 1.5, 0.5], dtype=torch.float64),
        "advantages": torch.tensor([1.0, -0.5, 0.7, 0.0], dtype=torch.float64),
        "rewards": torch.tensor([1.0, 0.0, 0.5, float("nan")], dtype=torch.float64),
        "groups": torch.tensor([0, 0, 1, 1]),
    }


def plain_token_logprobs(
    policy: Any, batch: Mapping[str, Tensor], row: int, temperature: float | None = None
) -> dict[int, float]:
    """The log-probability of each token that counts, by position, from the sequence alone without its padding.

    :param temperature: None for the row's own.
    """
    temperature = float(batch["temperature"][row]) if temperature is None else temperature
    positions = [i for i, valid in enumerate(batch["valid"][row].tolist()) if valid]
    tokens = batch["tokens"][row, positions]
    with torch.no_grad():
        logits = (policy(tokens[None])[0] / temperature).tolist()
    return {
        position: math.log(plain_softmax(logits[place - 1])[int(tokens[place])])
        for place, position in enumerate(positions)
        if place > 0 and batch["loss_mask"][row, position]
    }


def test_sft_is_the_cross_entropy_of_the_tokens_that_count(transformer: Any, text_batch: dict[str, Tensor]) -> None:
    loss = loss_of("sft")

    def reference() -> float:
        found = [-p for row in range(4) for p in plain_token_logprobs(transformer, text_batch, row, 1.0).values()]
        assert len(found) == 10
        return sum(found) / len(found)

    assert value_of(loss, transformer, text_batch).item() == pytest.approx(reference(), abs=1e-10)
    assert_same_gradients(transformer, lambda: value_of(loss, transformer, text_batch), reference)


def test_sft_on_rows_without_a_token_that_counts_is_zero(transformer: Any, text_batch: dict[str, Tensor]) -> None:
    batch = {**text_batch, "loss_mask": torch.zeros(4, 6, dtype=torch.bool)}
    loss = loss_of("sft")
    assert value_of(loss, transformer, batch).item() == 0
    assert int(loss.count(batch)) == 0


@pytest.mark.parametrize("is_stale", [True, False])
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_grpo_is_the_clipped_surrogate_of_each_token_that_was_judged(
    transformer: Any, text_batch: dict[str, Tensor], kl: float, is_stale: bool
) -> None:
    if is_stale:
        text_batch["proximal_logprobs"] = text_batch["logprobs"] + torch.linspace(
            -1, 1, text_batch["logprobs"].shape[1]
        )
    loss = loss_of("grpo", clip=0.2, kl=kl)
    loss.attach_policy(transformer)
    with torch.no_grad():  # away from the reference, so that there is a divergence
        transformer.norm.weight += 0.3

    def reference() -> float:
        terms = []
        for row in range(3):  # the reward of the last response is not applicable
            old_policy = loss._reference.policy if kl else None
            before = plain_token_logprobs(old_policy, text_batch, row) if kl else {}
            advantage = float(text_batch["advantages"][row])
            for position, logprob in plain_token_logprobs(transformer, text_batch, row).items():
                old = float(text_batch["logprobs"][row, position - 1])
                proximal = float(text_batch["proximal_logprobs"][row, position - 1]) if is_stale else old
                ratio = math.exp(logprob - proximal)
                clipped = min(max(ratio, 0.8), 1.2)
                term = -min(math.exp(proximal - old), 2.0) * min(ratio * advantage, clipped * advantage)
                if kl:
                    log_r = before[position] - logprob
                    term += kl * (math.exp(log_r) - 1 - log_r)
                terms.append(term)
        return sum(terms) / len(terms)

    assert value_of(loss, transformer, text_batch).item() == pytest.approx(reference(), abs=1e-10)
    assert_same_gradients(transformer, lambda: value_of(loss, transformer, text_batch), reference)


def test_group_advantages_are_standardised_within_a_group() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.2, 0.4, 0.9]
    groups = [0, 0, 0, 0, 2, 2, 2]
    expected = []
    for reward, group in zip(rewards, groups, strict=True):
        own = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = sum(own) / len(own)
        std = math.sqrt(sum((r - mean) ** 2 for r in own) / len(own))
        expected.append((reward - mean) / (std + 1e-4))
    found = group_advantages(torch.tensor(rewards), torch.tensor(groups))
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    assert group_advantages(torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0, 0, 0])).tolist() == [0, 0, 0]


def test_a_reward_that_is_not_applicable_has_no_say_in_its_group() -> None:
    nan = float("nan")
    found = group_advantages(torch.tensor([1.0, nan, 0.0, nan]), torch.tensor([0, 0, 0, 1]))
    assert found.tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-3)


def test_kl_is_the_divergence_from_the_first_policy(transformer: Any, text_batch: dict[str, Tensor]) -> None:
    loss = loss_of("kl")
    loss.attach_policy(transformer)
    assert value_of(loss, transformer, text_batch).item() == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        transformer.norm.weight += 0.3

    def reference() -> float:
        terms = []
        for row in range(4):
            before = plain_token_logprobs(loss._reference.policy, text_batch, row)
            for position, logprob in plain_token_logprobs(transformer, text_batch, row).items():
                log_r = before[position] - logprob
                terms.append(math.exp(log_r) - 1 - log_r)
        return sum(terms) / len(terms)

    assert value_of(loss, transformer, text_batch).item() == pytest.approx(reference(), abs=1e-10)
    assert_same_gradients(transformer, lambda: value_of(loss, transformer, text_batch), reference)


def test_kl_of_actions_is_the_divergence_of_the_actor(actor_critic: Any, control_batch: dict[str, Tensor]) -> None:
    loss = loss_of("kl", of="actions")
    loss.attach_policy(actor_critic)
    with torch.no_grad():
        actor_critic.actor[0].weight += 0.3

    def reference() -> float:
        total = 0.0
        for row in range(12):
            obs, action = control_batch["obs"][row].tolist(), int(control_batch["actions"][row])
            new = plain_softmax(plain_perceptron(actor_critic, "actor", obs))[action]
            old = plain_softmax(plain_perceptron(loss._reference.policy, "actor", obs))[action]
            total += old / new - 1 - math.log(old / new)
        return total / 12

    assert value_of(loss, actor_critic, control_batch).item() == pytest.approx(reference(), abs=1e-10)
    assert_same_gradients(actor_critic, lambda: value_of(loss, actor_critic, control_batch), reference)


def test_the_estimate_of_a_divergence_is_right_on_average() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    exact = (p * (p / q).log()).sum()
    assert (p * kl_estimate(p.log(), q.log())).sum().item() == pytest.approx(exact.item(), abs=1e-6)
