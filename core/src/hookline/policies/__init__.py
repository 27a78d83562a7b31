"""Policies. `protocol.py` says what one must offer; any torch module that does can be trained.

The two that are shipped, `MLPPolicy` and `TransformerPolicy`, are specifications: plain data with two forwards, torch
for training and JAX for rollouts.

    policy = MLPPolicy(observation_size=4, actions=Discrete(2))
    weights = policy.initial_weights(seed=0)            # a flat dictionary of NumPy arrays
    module = policy.torch_module(weights)               # an nn.Module with parameters of the same names
    logits, value = policy.jax_forward(weights, obs)

Neither framework is imported before its forward is asked for. Weights travel as flat dictionaries of arrays
(`to_numpy`, `to_jax`), never as pickles.
"""

from hookline.extras import MissingExtraError
from hookline.policies.actions import Actions, Continuous, Discrete
from hookline.policies.mlp import MLPPolicy
from hookline.policies.protocol import PolicyError
from hookline.policies.transformer import TransformerPolicy
from hookline.policies.weights import WeightsError, check_weights, to_jax, to_numpy

__all__ = [
    "Actions",
    "Continuous",
    "Discrete",
    "MLPPolicy",
    "MissingExtraError",
    "PolicyError",
    "TransformerPolicy",
    "WeightsError",
    "check_weights",
    "to_jax",
    "to_numpy",
]
