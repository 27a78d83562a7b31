"""The torch forward of `MLPPolicy`, as a module to train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookline.policies.mlp import MLPPolicy
from hookline.policies.protocol import Discrete, outputs_for
from hookline.policies.weights import load_into_module

__all__ = ["ActorCritic"]


class ActorCritic(nn.Module):
    """A module whose parameters have the names of the specification's weights."""

    def __init__(self, policy: MLPPolicy, weights: Mapping[str, Any]) -> None:
        super().__init__()
        self.policy = policy
        self.actor = _linear_layers(policy, outputs_for(policy.actions))
        self.critic = _linear_layers(policy, 1)
        if not isinstance(policy.actions, Discrete):
            self.log_std = nn.Parameter(torch.zeros(policy.actions.size))
        load_into_module(self, policy.shapes(), weights)

    @property
    def specification(self) -> MLPPolicy | None:
        """The specification of this module. None for a subclass, since it may compute something else."""
        return self.policy if type(self) is ActorCritic else None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means, and the value, for observations of any leading shape."""
        return _perceptron(self.actor, obs), _perceptron(self.critic, obs).squeeze(-1)


def _linear_layers(policy: MLPPolicy, outputs: int) -> nn.ModuleList:
    sizes = (policy.observation_size, *policy.hidden, outputs)
    return nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))


def _perceptron(layers: nn.ModuleList, x: Tensor) -> Tensor:
    # functional.linear, because calling a module takes longer than a layer this small.
    *hidden, last = cast(Iterable[nn.Linear], layers)
    for layer in hidden:
        x = torch.tanh(functional.linear(x, layer.weight, layer.bias))
    return functional.linear(x, last.weight, last.bias)
