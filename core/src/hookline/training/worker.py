"""The rollout worker that a trainer builds for itself, and the policy that both hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hookline.plugin_manager.manager import PluginManager
from hookline.training.config import RolloutConfig
from hookline.training.errors import TrainingError
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker

__all__ = ["as_module", "build_worker", "plays_text"]


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
            policy=_specification(policy),
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


def _specification(policy: Any) -> Any:
    """The policy as plain data: what it is, or what the module was made from."""
    if not isinstance(policy, nn.Module):
        return policy
    specification = getattr(policy, "policy", None)
    if specification is None:
        raise TrainingError(
            f"the policy is a {type(policy).__name__}, of which rollouts cannot be made: give the trainer an MLPPolicy "
            "or a TransformerPolicy, a module made by one's torch_module(), or a dataset instead of rollouts"
        )
    return specification


def as_module(policy: Any, seed: int) -> nn.Module:
    """The policy as a module to train: itself, or a new one made from its specification."""
    if isinstance(policy, nn.Module):
        return policy
    if not hasattr(policy, "torch_module"):
        raise TrainingError(
            f"the policy is a {type(policy).__name__}; it must be a torch module, an MLPPolicy or a TransformerPolicy"
        )
    module: nn.Module = policy.torch_module(policy.initial_weights(seed))
    return module


def plays_text(policy: Any) -> bool:
    """Whether what the policy chooses are tokens."""
    return hasattr(policy, "token_logprobs")
