"""The rollout worker that a trainer builds for itself, and the policy that both hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookline.plugin_manager.manager import PluginManager
from hookline.policies.actor_torch import TorchActor
from hookline.policies.forward_torch import control_policy
from hookline.policies.protocol import JaxControlPolicy, JaxTextPolicy, PolicyError, PolicySpecification, TextPolicy
from hookline.training.config import RolloutConfig
from hookline.training.errors import TrainingError
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker

__all__ = ["as_module", "build_worker", "have_worker_play", "jax_specification"]


def build_worker(
    config: RolloutConfig,
    curriculum: Curriculum | CurriculumConfig | None,
    policy: Any,
    seed: int,
    ranks: Ranks,
    plugins: PluginManager,
    state: TrainerState,
) -> RolloutWorker:
    """A worker for the curriculum's lessons; CartPole when there is no curriculum."""
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker, RolloutWorkerConfig, SamplingConfig

    lessons = curriculum.config if isinstance(curriculum, Curriculum) else curriculum or CurriculumConfig()
    worker = RolloutWorker(
        RolloutWorkerConfig(
            curriculum_config=lessons,
            policy=jax_specification(policy),
            num_environments=config.num_environments,
            steps_per_rollout=config.steps_per_rollout,
            sampling=SamplingConfig(samples_per_prompt=config.samples_per_prompt),
            seed=seed,
            worker_index=ranks.rank,
        ),
        plugins,
        run_state=state,
    )
    if isinstance(curriculum, Curriculum):
        worker.curriculum = curriculum  # the caller's own, so that its standings can be seen there
    return worker


def as_module(policy: Any, seed: int) -> nn.Module:
    """The policy as a module to train: itself, or a new one made from its specification."""
    if isinstance(policy, nn.Module):
        return policy
    if isinstance(policy, PolicySpecification):
        return policy.torch_module(policy.initial_weights(seed))
    raise TrainingError(
        f"the policy is a {type(policy).__name__}; it must be a torch module, or a specification that makes one, such "
        "as an MLPPolicy or a TransformerPolicy"
    )


def jax_specification(policy: Any) -> PolicySpecification | None:
    """The specification by which rollouts are made in JAX: the policy, or what its module says; None for neither."""
    found = getattr(policy, "specification", None) if isinstance(policy, nn.Module) else policy
    has_forward = isinstance(found, (JaxControlPolicy, JaxTextPolicy))
    return found if has_forward and isinstance(found, PolicySpecification) else None


def have_worker_play(worker: RolloutWorker, module: nn.Module, device: torch.device) -> None:
    """Have the worker play the module by torch, unless there is a specification; check that the lessons suit it.

    A worker that was made with a policy in its config goes on with that one: the weights must have the same names.
    """
    if jax_specification(module) is None and worker.config.policy is None:
        worker.use_actor(TorchActor(module, device))
    if not worker.plays_text:
        control_policy(module)
    elif not isinstance(module, TextPolicy):
        raise PolicyError(
            f"the lessons are of text ({', '.join(worker.curriculum.lessons)}), and the policy, a "
            f"{type(module).__name__}, has no token_logprobs(): give it token_logprobs(tokens, valid, temperature), "
            "since a forward(tokens) does not know which tokens are padding"
        )
