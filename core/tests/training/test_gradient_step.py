"""One gradient step: the shortcuts of a small policy beside the plain way, and Adam beside torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hookline import PluginManager, hookimpl
from hookline.policies import Discrete, MLPPolicy
from hookline.policies.mlp_torch import ActorCritic
from hookline.training import OptimizerConfig
from hookline.training.errors import NonFiniteLossError
from hookline.training.flat_adam import FlatAdam
from hookline.training.gradient_step import GradientStep
from hookline.training.losses import Loss, LossTerm, SharedLossData, actions_forward
from hookline.training.losses.ppo_actor import PPOActor
from hookline.training.losses.registry import build_losses
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

POLICY = MLPPolicy(3, Discrete(4), hidden=(8, 8))
STATE = TrainerState(epoch=1, total_epochs=4)


class WithoutShortcut(ActorCritic):
    """The same policy, evaluated by its module and autograd."""


class Confident(Loss):
    """Asks autograd for the gradient of the forward that all share."""

    def run_train(self, shared: SharedLossData) -> LossTerm:
        return self.mean(actions_forward(shared).entropy.square())


class SmallWeights(Loss):
    """Reaches for the parameters themselves."""

    def run_train(self, shared: SharedLossData) -> LossTerm:
        return LossTerm(sum(parameter.square().sum() for parameter in shared.policy.parameters()), 1)


class TwiceTheActor(PPOActor):
    """Builds on a loss whose gradient is known, and knows nothing of that."""

    def run_train(self, shared: SharedLossData) -> LossTerm:
        term = super().run_train(shared)
        return LossTerm(2 * term.value + actions_forward(shared).values.mean(), term.size)


class Others:
    @hookimpl
    def register_losses(self) -> Mapping[str, type[Loss]]:
        return {"confident": Confident, "small_weights": SmallWeights, "twice": TwiceTheActor}


@pytest.fixture
def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(16, generator=generator) for name in ("advantages", "returns", "values")}
    obs = torch.randn(16, 3, generator=generator)
    actions = torch.randint(4, (16,), generator=generator, dtype=torch.int32)
    return rows | {"obs": obs, "actions": actions, "logprobs": -1.4 + 0.3 * torch.randn(16, generator=generator)}


def gradient_of(module: ActorCritic, losses: Mapping[str, Any], batch: dict[str, Tensor]) -> tuple[Any, Tensor]:
    plugins = PluginManager()
    plugins.register(Others())
    step = GradientStep(module, build_losses(losses, plugins), OptimizerConfig(max_grad_norm=None), Ranks())
    return step.take(batch, STATE), step.parameters.gradient


@pytest.mark.parametrize(
    "losses",
    [
        {"ppo_actor": {"entropy": 0.1}, "ppo_critic": {}},
        {"ppo_actor": {"weight": 0.3}},
        {"ppo_critic": {"clip": None}},
        {"ppo_actor": {}, "confident": {"weight": 0.5}, "ppo_critic": {}},
        {"confident": {}, "small_weights": {}, "ppo_actor": {}},
        {"twice": {"weight": 0.7}, "ppo_critic": {}},
    ],
    ids=lambda losses: "+".join(losses),
)
def test_a_step_by_hand_has_the_gradient_of_a_step_by_autograd(
    losses: Mapping[str, Any], batch: dict[str, Tensor]
) -> None:
    weights = POLICY.initial_weights(3)
    metrics, gradient = gradient_of(ActorCritic(POLICY, weights), losses, batch)
    plain_metrics, plain_gradient = gradient_of(WithoutShortcut(POLICY, weights), losses, batch)
    assert plain_gradient.norm() > 0.01
    torch.testing.assert_close(gradient, plain_gradient, atol=1e-6, rtol=1e-5)
    assert metrics == pytest.approx(plain_metrics, abs=1e-6)


def test_a_step_by_hand_asks_nothing_of_autograd(batch: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("autograd was asked")

    monkeypatch.setattr(torch.Tensor, "backward", refuse)
    _, gradient = gradient_of(POLICY.torch_module(), {"ppo_actor": {}, "ppo_critic": {}}, batch)
    assert gradient.norm() > 0.01


def test_flat_adam_is_adam_bit_for_bit_and_goes_on_from_its_state() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    one, other = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    flat = FlatAdam(one, 1e-2, (0.8, 0.99), 1e-6, 0.1)
    adam = torch.optim.Adam([other], lr=1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1, fused=True)
    for step in range(6):
        if step in (2, 4):  # a new optimizer, from what the old one would save, and torch's
            saved = flat.state_dict() if step == 2 else adam.state_dict()
            flat = FlatAdam(one, 1.0, (0.5, 0.5), 1.0, 0.0)
            flat.load_state_dict(saved)
        one.grad = torch.randn(50, generator=generator)
        other.grad = one.grad.clone()
        for optimizer in (flat, adam):
            optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
            optimizer.step()
        assert torch.equal(one, other)


def test_a_ratio_that_overflows_is_an_error_of_the_loss(batch: dict[str, Tensor]) -> None:
    far = {**batch, "logprobs": torch.full((16,), -200.0), "advantages": -torch.ones(16)}
    with pytest.raises(NonFiniteLossError, match="loss 'ppo_actor' is inf at step 0 of epoch 1"):
        gradient_of(POLICY.torch_module(), {"ppo_actor": {"normalize_advantages": False}}, far)


def test_a_minibatch_of_one_row_has_an_advantage_like_any_other(batch: dict[str, Tensor]) -> None:
    row = {name: values[:1] for name, values in batch.items()}
    metrics, _ = gradient_of(POLICY.torch_module(), {"ppo_actor": {"entropy": 0.0}}, row)
    assert metrics["train/ppo_actor"] == 0
