"""`MLPPolicy`: separate actor and critic networks, both multi-layer perceptrons with tanh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hookline.importing import require
from hookline.policies.protocol import Actions, Discrete, outputs_for

if TYPE_CHECKING:
    import jax
    import numpy as np

    from hookline.policies.mlp_torch import ActorCritic

__all__ = ["MLPPolicy"]


@dataclass(frozen=True)
class MLPPolicy:
    """An actor-critic for vector observations.

    The weights are `actor.<layer>.weight` (outputs x inputs), `actor.<layer>.bias`, and the same under `critic`.
    Continuous actions add `log_std`, the logarithm of the std, which does not depend on the observation.
    """

    observation_size: int
    actions: Actions
    hidden: tuple[int, ...] = (64, 64)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for network, outputs in (("actor", outputs_for(self.actions)), ("critic", 1)):
            sizes = (self.observation_size, *self.hidden, outputs)
            for layer, (before, after) in enumerate(pairwise(sizes)):
                shapes[f"{network}.{layer}.weight"] = (after, before)
                shapes[f"{network}.{layer}.bias"] = (after,)
        if not isinstance(self.actions, Discrete):
            shapes["log_std"] = (self.actions.size,)
        return shapes

    def initial_weights(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Orthogonal weights and zero biases. The actor's last layer is small, so no action is preferred at first."""
        np = require("numpy", "a policy")
        generator = np.random.default_rng(seed)
        last = len(self.hidden)
        weights = {}
        for name, shape in self.shapes().items():
            if not name.endswith(".weight"):
                weights[name] = np.zeros(shape, np.float32)
                continue
            network, layer, _ = name.split(".")
            gain = math.sqrt(2) if int(layer) < last else (0.01 if network == "actor" else 1.0)
            weights[name] = (gain * _orthogonal(np, generator, shape)).astype(np.float32)
        return weights

    def torch_module(self, weights: Mapping[str, Any] | None = None, seed: int = 0) -> ActorCritic:
        """The policy as a torch module for training, with these weights or new ones."""
        require("torch", "training a policy")
        from hookline.policies.mlp_torch import ActorCritic

        return ActorCritic(self, self.initial_weights(seed) if weights is None else weights)

    def jax_forward(self, weights: Mapping[str, jax.Array], obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits or means, and the value, for observations of any leading shape."""
        from hookline.policies.mlp_jax import forward

        return forward(self, weights, obs)


def _orthogonal(np: Any, generator: Any, shape: tuple[int, ...]) -> Any:
    rows, columns = shape
    square = generator.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(square)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
