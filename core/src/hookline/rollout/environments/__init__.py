"""Environments that are stepped: those in JAX as pure functions, CartPole among them, and those of Gymnasium."""

from hookline.rollout.environments.gymnasium_env import actions_of
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition

__all__ = ["JaxEnvironment", "Transition", "actions_of"]
