"""The policy that a trainer is given, in any form: the module that it trains, and what rollouts play."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookline.policies import HuggingFacePolicy
from hookline.policies.forward_torch import control_policy
from hookline.policies.huggingface_torch import CausalLM, is_transformers_model
from hookline.policies.protocol import (
    HasTokenizer,
    HuggingFaceSpecification,
    JaxControlPolicy,
    JaxTextPolicy,
    PolicyError,
    PolicySpecification,
    TextPolicy,
)
from hookline.training.config import TrainerConfig
from hookline.training.errors import TrainerConfigError, TrainingError

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["as_module", "given_policy", "use_module_for_rollouts", "worker_specification"]


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
    if isinstance(found, HuggingFaceSpecification):
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


def as_module(policy: Any, seed: int) -> nn.Module:
    """The policy itself if it is a module, or a new module made from its specification."""
    if isinstance(policy, nn.Module):
        return policy
    if isinstance(policy, PolicySpecification):
        return policy.torch_module(seed=seed)
    raise TrainingError(
        f"the policy is a {type(policy).__name__}; it must be a torch module, the folder or name of a Hugging Face "
        "model, or a specification such as MLPPolicy or TransformerPolicy"
    )


def worker_specification(policy: Any) -> PolicySpecification | None:
    """The specification that a worker can play by itself: the policy or its `specification`.

    None if there is none, or if it has neither a JAX forward nor a tokenizer. A worker then plays the torch module.
    """
    found = getattr(policy, "specification", None) if isinstance(policy, nn.Module) else policy
    playable = isinstance(found, (JaxControlPolicy, JaxTextPolicy, HasTokenizer))
    return found if playable and isinstance(found, PolicySpecification) else None


def use_module_for_rollouts(worker: RolloutWorker, module: nn.Module, device: torch.device) -> None:
    """Make the worker sample with the torch module's weights; check that it fits the lessons.

    A worker with a policy in its config keeps that policy. Its weights must have the same names as the module's.
    """
    if worker.plays_text:
        if not isinstance(module, TextPolicy):
            raise PolicyError(
                f"the lessons are text ({', '.join(worker.curriculum.lessons)}), but the policy, a "
                f"{type(module).__name__}, has no token_logprobs(): add token_logprobs(tokens, valid, temperature); "
                "forward(tokens) is not enough, since it does not know which tokens are padding"
            )
        worker.player.use_module(module, str(device))
    else:
        if worker_specification(module) is None and worker.config.policy is None:
            worker.player.use_module(module, str(device))
        control_policy(module)
