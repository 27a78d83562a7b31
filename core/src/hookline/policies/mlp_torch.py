"""The torch forward of `MLPPolicy`, as a module to train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookline.policies.actions import Discrete
from hookline.policies.mlp import MLPPolicy
from hookline.policies.weights import load_into_module

__all__ = ["ActorCritic"]


class ActorCritic(nn.Module):
    """The module's parameters go by the names of the specification."""

    def __init__(self, policy: MLPPolicy, weights: Mapping[str, Any]) -> None:
        super().__init__()
        self.policy = policy
        self.actor = _linear_layers(policy, policy.action_outputs)
        self.critic = _linear_layers(policy, 1)
        if not isinstance(policy.actions, Discrete):
            self.log_std = nn.Parameter(torch.zeros(policy.actions.size))
        load_into_module(self, policy.shapes(), weights)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means, and the value, for observations of any leading shape."""
        return _perceptron(self.actor, obs), _perceptron(self.critic, obs).squeeze(-1)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-probability of actions that were taken, the entropy of the policy there, and the value."""
        outputs, values = self(obs)
        if isinstance(self.policy.actions, Discrete):
            logprobs = outputs.log_softmax(-1)
            chosen = logprobs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
            return chosen, -(logprobs.exp() * logprobs).sum(-1), values
        z = (actions - outputs) * torch.exp(-self.log_std)
        half_log_tau = 0.5 * math.log(2 * math.pi)
        chosen = (-0.5 * z**2 - self.log_std - half_log_tau).sum(-1)
        entropy = (0.5 + half_log_tau + self.log_std).sum().expand_as(chosen)
        return chosen, entropy, values


def _linear_layers(policy: MLPPolicy, outputs: int) -> nn.ModuleList:
    sizes = (policy.observation_size, *policy.hidden, outputs)
    return nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))


def _perceptron(layers: nn.ModuleList, x: Tensor) -> Tensor:
    # By functions: layers this small are over before a module has been called.
    *hidden, last = cast(Iterable[nn.Linear], layers)
    for layer in hidden:
        x = torch.tanh(functional.linear(x, layer.weight, layer.bias))
    return functional.linear(x, last.weight, last.bias)
