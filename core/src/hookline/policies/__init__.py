"""Policies. `protocol.py` lists the methods that a policy needs. Any torch module with these methods can be trained.

Hookline ships two small policies, `MLPPolicy` and `TransformerPolicy`, and `HuggingFacePolicy` for any causal language
model of `transformers`. They are specifications: plain data with a torch forward for training and a JAX forward for
rollouts.

    policy = MLPPolicy(observation_size=4, actions=Discrete(2))
    weights = policy.initial_weights(seed=0)            # a flat dictionary of NumPy arrays
    module = policy.torch_module(weights)               # an nn.Module with parameters of the same names
    logits, value = policy.jax_forward(weights, obs)

A framework is imported on the first use of its forward. Weights are passed on as flat dictionaries of arrays
(`to_numpy`, `to_jax`), never as pickles.
"""

from hookline.importing import MissingExtraError
from hookline.policies.huggingface import HuggingFacePolicy, LoraConfig
from hookline.policies.mlp import MLPPolicy
from hookline.policies.protocol import Actions, Continuous, Discrete, PolicyError
from hookline.policies.transformer import TransformerPolicy
from hookline.policies.weights import WeightsError, check_weights, to_jax, to_numpy

__all__ = [
    "Actions",
    "Continuous",
    "Discrete",
    "HuggingFacePolicy",
    "LoraConfig",
    "MLPPolicy",
    "MissingExtraError",
    "PolicyError",
    "TransformerPolicy",
    "WeightsError",
    "check_weights",
    "to_jax",
    "to_numpy",
]
