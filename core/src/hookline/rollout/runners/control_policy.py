"""Whether a policy suits a control environment."""

from __future__ import annotations

from typing import Any

from hookline.policies import MLPPolicy
from hookline.rollout.errors import RolloutError

__all__ = ["check_control_policy"]


def check_control_policy(lesson_id: str, environment: str, policy: Any, needed: MLPPolicy) -> None:
    """Raise an error that says what the environment needs and what the policy has."""
    where = f"lesson {lesson_id!r}: environment {environment!r}"
    if not isinstance(policy, MLPPolicy):
        raise RolloutError(f"{where} needs an MLPPolicy, not a {type(policy).__name__}")
    if policy.observation_size != needed.observation_size:
        raise RolloutError(
            f"{where} gives observations of size {needed.observation_size}, the policy takes {policy.observation_size}"
        )
    if type(policy.actions) is not type(needed.actions) or policy.action_outputs != needed.action_outputs:
        raise RolloutError(f"{where} has the actions {needed.actions}, the policy has {policy.actions}")
