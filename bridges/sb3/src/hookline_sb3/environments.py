"""What is known of a model's training environment, and a copy of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from hookline.errors import HooklineError

__all__ = ["copy_environment", "environment_name"]

WHAT_TO_DO = "give HooklineCallback an eval_env to evaluate the policy in, or disable the plugin 'evaluation'"


def _spec_of(model: Any) -> gymnasium.envs.registration.EnvSpec | None:
    """The gymnasium spec of the first training environment; None for one that was not made by `gymnasium.make`."""
    try:
        spec: gymnasium.envs.registration.EnvSpec | None = model.get_env().get_attr("spec", [0])[0]
    except (AttributeError, NotImplementedError):
        return None
    return spec


def environment_name(model: Any) -> str:
    """What the training environment is called among lessons."""
    spec = _spec_of(model)
    return "environment" if spec is None else spec.id


def copy_environment(model: Any) -> VecEnv:
    """A new environment like those that the model trains in, or an error that says why there can be none."""
    spec = _spec_of(model)
    if spec is None:
        raise HooklineError(f"the training environment has no gymnasium spec to make another by: {WHAT_TO_DO}")
    wrappers = tuple(own for own in spec.additional_wrappers if own.name != Monitor.__name__)
    try:
        environment = gymnasium.make(replace(spec, additional_wrappers=wrappers))
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise HooklineError(f"{spec.id} cannot be made again by its spec ({error}): {WHAT_TO_DO}") from error
    copy: VecEnv = model._wrap_env(DummyVecEnv([lambda: Monitor(environment)]), verbose=0)
    normalized = model.get_vec_normalize_env()
    if normalized is not None:
        copy = VecNormalize(copy, training=False, norm_obs=normalized.norm_obs, norm_reward=False)
    if copy.observation_space != model.observation_space or copy.action_space != model.action_space:
        copy.close()
        raise HooklineError(
            f"another {spec.id} has other spaces than the training environment, which is wrapped further: {WHAT_TO_DO}"
        )
    return copy
