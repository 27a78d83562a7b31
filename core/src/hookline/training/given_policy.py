"""`given_policy`: the policy of a trainer's argument or config, with a Hugging Face model in any form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hookline.policies import HuggingFacePolicy
from hookline.policies.huggingface_torch import CausalLM, is_transformers_model
from hookline.training.config import TrainerConfig
from hookline.training.errors import TrainerConfigError

__all__ = ["given_policy"]


def given_policy(config: TrainerConfig, policy: Any) -> tuple[TrainerConfig, Any]:
    """The config, with the folder or name of a Hugging Face policy recorded in it, and the policy.

    The policy is a specification or a torch module; None if neither the argument nor the config has one.
    """
    if policy is None and config.policy is not None:
        policy = HuggingFacePolicy(config.policy, config.lora)
    elif isinstance(policy, str):
        policy = HuggingFacePolicy(policy, config.lora)
    elif is_transformers_model(policy):
        policy = CausalLM(policy)
    found = getattr(policy, "specification", policy)
    if isinstance(found, HuggingFacePolicy):
        recorded = replace(config, policy=found.path, lora=found.lora)
    else:
        recorded = replace(config, policy=None, lora=None)
    if config.policy not in (None, recorded.policy):
        raise TrainerConfigError(f"the config's policy is {config.policy!r}, but the trainer was given another one")
    if config.lora not in (None, recorded.lora):
        raise TrainerConfigError(
            "lora adds adapters to a model that the trainer loads: give `policy` as a folder or name, or a model that "
            "has adapters already, by peft.get_peft_model"
        )
    return (config if recorded == config else recorded), policy
