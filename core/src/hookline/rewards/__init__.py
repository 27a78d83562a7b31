"""Rewards for rollouts: episodes are read once, scored, verified, and divided into accepted and rejected.

    config = IntegratedRewardConfig(reward_config=RewardConfig(keywords=["because"]), strict_filtering=True)
    system = create_integrated_reward_system(config)
    rewards, accepted, rejected = system.process_episodes(episodes)

The rewards of a batch are columns of numbers, computed by MLX where it is installed and by NumPy elsewhere, with the
same results. Models, by `RewardConfig(perplexity_model=..., reward_model=...)`, run in MLX on a GPU and in NumPy on a
CPU. Rewards and verifiers of your own are plugins that implement `score_episodes` and `verify_episodes`.
"""

from hookline.importing import require

require("numpy", "hookline.rewards", "rewards")
require("ahocorasick_rs", "hookline.rewards")

from hookline.rewards.config import IntegratedRewardConfig, RewardConfig  # noqa: E402
from hookline.rewards.errors import RewardError  # noqa: E402
from hookline.rewards.features import Column, FeatureTable  # noqa: E402
from hookline.rewards.integrated import (  # noqa: E402
    IntegratedRewardSystem,
    create_integrated_reward_system,
    process_episodes_with_quality_control,
)
from hookline.rewards.phrases import PhraseList  # noqa: E402
from hookline.rewards.pipeline import (  # noqa: E402
    VerifierPipeline,
    create_custom_verifier_pipeline,
    create_default_verifier_pipeline,
)
from hookline.rewards.processor import RolloutRewardProcessor, create_rollout_reward_processor  # noqa: E402
from hookline.rewards.scoring import compute_reward_vector  # noqa: E402
from hookline.rewards.verification import ReportColumn, result_codes  # noqa: E402
from hookline.text_verifier import TextVerifier  # noqa: E402
from hookline_hookspecs import VerificationReport, VerificationResult  # noqa: E402

__all__ = [
    "Column",
    "FeatureTable",
    "IntegratedRewardConfig",
    "IntegratedRewardSystem",
    "PhraseList",
    "ReportColumn",
    "RewardConfig",
    "RewardError",
    "RolloutRewardProcessor",
    "TextVerifier",
    "VerificationReport",
    "VerificationResult",
    "VerifierPipeline",
    "compute_reward_vector",
    "create_custom_verifier_pipeline",
    "create_default_verifier_pipeline",
    "create_integrated_reward_system",
    "create_rollout_reward_processor",
    "process_episodes_with_quality_control",
    "result_codes",
]
