"""Every code block of the TextPolicy document, in its order, with only the import line changed."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from hookline_hookspecs import Episode

RESPONSE = (
    "A quantum computer runs an algorithm on qubits. Because qubits hold many values at once, some problems take "
    "fewer steps. For example, searching a list is faster. It is still hard to build one, since noise disturbs it."
)


def make_episodes() -> list[dict[str, Any]]:
    return [
        {"prompt": "Explain quantum computing", "response": RESPONSE},
        {"prompt": "What is ML?", "response": "Kill yourself, idiot."},
        {"prompt": "What is ML?", "response": ""},
    ]


def test_the_rollout_reward_processor() -> None:
    from hookline.rewards import RewardConfig, create_rollout_reward_processor

    config = RewardConfig(
        length_weight=0.2,
        keyword_weight=0.3,
        perplexity_weight=0.3,
        accuracy_weight=0.2,
        target_length=50,
        keywords=['quantum', 'computer', 'algorithm']
    )  # fmt: skip
    processor = create_rollout_reward_processor(config)
    episodes = [
        {'prompt': 'Explain quantum computing', 'response': '...'},
        {'prompt': 'What is ML?', 'response': '...'}
    ]  # fmt: skip
    rewards = processor.process_episode_rewards(episodes)

    assert rewards.shape == (2,)
    assert all(0.0 <= reward <= 1.0 for reward in rewards)


def test_the_verification_system() -> None:
    from hookline.rewards import create_custom_verifier_pipeline, create_default_verifier_pipeline

    prompts = ["Explain quantum computing", "What is ML?"]
    responses = [RESPONSE, "Kill yourself, idiot."]
    verifier = create_default_verifier_pipeline()
    reports = verifier.verify_batch(prompts, responses)
    assert [report.result.value for report in reports] == ["pass", "fail"]

    custom_configs = [
        {'type': 'length', 'min_length': 20, 'max_length': 200},
        {'type': 'toxicity'},
        {'type': 'coherence'},
        {'type': 'factual'}
    ]  # fmt: skip
    verifier = create_custom_verifier_pipeline(custom_configs)
    assert verifier.verifiers == ["verify-length", "verify-toxicity", "verify-coherence", "verify-factual"]
    assert [report.result.value for report in verifier.verify_batch(prompts, responses)] == ["pass", "fail"]


def test_the_integrated_system() -> None:
    from hookline.rewards import IntegratedRewardConfig, RewardConfig, create_integrated_reward_system

    episodes = make_episodes()
    config = IntegratedRewardConfig(
        reward_config=RewardConfig(...),  # type: ignore[arg-type]
        enable_verification=True,
        verification_threshold=0.7,
        strict_filtering=False,
        min_reward_threshold=0.3,
    )
    system = create_integrated_reward_system(config)
    rewards, accepted, rejected = system.process_episodes(episodes)
    quality_metrics = system.get_quality_metrics(accepted + rejected)

    assert len(rewards) == len(accepted) + len(rejected) == 3
    assert quality_metrics["episodes"] == 3
    assert quality_metrics["fail_count"] == 2


def test_the_integration_with_the_rollout_system() -> None:
    from hookline.rewards import IntegratedRewardConfig, create_integrated_reward_system

    config = IntegratedRewardConfig(strict_filtering=True)
    coordinator = SimpleNamespace(
        collect=lambda: SimpleNamespace(episodes=[Episode(**episode) for episode in make_episodes()])
    )
    reward_system = create_integrated_reward_system(config)
    buffer = coordinator.collect()
    rewards, accepted, rejected = reward_system.process_buffer(buffer)

    assert [episode.response for episode in accepted] == [RESPONSE]
    assert len(rejected) == 2
    assert rewards[2] == 0.0


def test_the_mlx_optimization() -> None:
    mx = pytest.importorskip("mlx.core")

    @mx.compile
    def compute_reward_vector(
        response_lengths: mx.array,
        keyword_matches: mx.array,
        fluency_scores: mx.array,
        accuracy_scores: mx.array,
        weights: mx.array,
    ) -> mx.array:
        return (
            weights[0] * response_lengths +
            weights[1] * keyword_matches +
            weights[2] * fluency_scores +
            weights[3] * accuracy_scores
        )  # fmt: skip

    length_scores, keyword_scores, fluency_scores, accuracy_scores = (mx.array([0.5, 1.0]) for _ in range(4))
    weights = mx.array([0.1, 0.2, 0.3, 0.4])
    rewards = compute_reward_vector(length_scores, keyword_scores, fluency_scores, accuracy_scores, weights)
    assert rewards.tolist() == pytest.approx([0.5, 1.0])


def test_the_configuration_options() -> None:
    from hookline.rewards import IntegratedRewardConfig, RewardConfig

    documented = {
        "length_weight": 0.1,
        "keyword_weight": 0.2,
        "perplexity_weight": 0.3,
        "accuracy_weight": 0.4,
        "target_length": 50,
        "keywords": None,
        "external_rm_url": None,
        "external_rm_timeout": 30.0,
        "batch_size": 32,
        "max_workers": 4,
    }
    assert list(dataclasses.asdict(RewardConfig()).items())[: len(documented)] == list(documented.items())
    documented = {
        "reward_config": dataclasses.asdict(RewardConfig()),
        "enable_verification": True,
        "verification_threshold": 0.7,
        "strict_filtering": False,
        "min_reward_threshold": 0.3,
        "max_reward_threshold": 1.0,
        "batch_size": 32,
        "enable_mlx_compilation": True,
    }
    assert list(dataclasses.asdict(IntegratedRewardConfig()).items())[: len(documented)] == list(documented.items())


def test_the_pure_function_interface() -> None:
    from hookline.rewards import IntegratedRewardConfig, process_episodes_with_quality_control

    episodes, config = make_episodes(), IntegratedRewardConfig()
    rewards, accepted, rejected, metrics = process_episodes_with_quality_control(
        episodes, config
    )  # fmt: skip

    assert len(rewards) == len(accepted) + len(rejected)
    assert metrics["acceptance_rate"] == len(accepted) / 3
    assert episodes == make_episodes()


def test_the_system_instance_and_buffer_integration() -> None:
    from hookline.rewards import IntegratedRewardConfig, create_integrated_reward_system

    config = IntegratedRewardConfig()
    episode_batches = [make_episodes(), make_episodes()[:1]]
    system = create_integrated_reward_system(config)
    try:
        for batch in episode_batches:
            rewards, accepted, rejected = system.process_episodes(batch)
            assert len(rewards) == len(batch)
    finally:
        system.close()

    system = create_integrated_reward_system(config)
    buffer = SimpleNamespace(episodes=make_episodes())
    rewards, accepted, rejected = system.process_buffer(buffer)
    metrics = system.get_quality_metrics(accepted + rejected)
    assert metrics["episodes"] == 3


def test_the_best_practices() -> None:
    from hookline.rewards import IntegratedRewardConfig, process_episodes_with_quality_control

    config = IntegratedRewardConfig(
        batch_size=32,  # Good for real-time processing
    )
    strict = config = IntegratedRewardConfig(
        verification_threshold=0.8,  # High quality bar
        strict_filtering=True,  # Both rewards and verification must pass
    )
    lenient = config = IntegratedRewardConfig(
        verification_threshold=0.5,  # Lower quality bar
        strict_filtering=False,  # Either can pass
    )
    config = IntegratedRewardConfig(
        enable_mlx_compilation=True,  # Compile reward functions
        batch_size=64,  # Larger batches for compilation overhead
    )
    by_config = [process_episodes_with_quality_control(make_episodes(), one)[3] for one in (strict, lenient, config)]
    assert by_config[0]["acceptance_rate"] <= by_config[1]["acceptance_rate"]


def test_a_custom_verifier() -> None:
    from hookline import PluginManager
    from hookline.rewards import (
        IntegratedRewardConfig,
        TextVerifier,
        VerificationReport,
        VerificationResult,
        create_custom_verifier_pipeline,
        create_integrated_reward_system,
    )

    class CustomVerifier(TextVerifier):
        def verify(self, prompt: str, response: str) -> VerificationReport:
            # Custom verification logic
            score = self._compute_custom_score(prompt, response)

            return VerificationReport(
                result=VerificationResult.PASS if score > 0.7 else VerificationResult.FAIL,
                score=score,
                details={'custom_metric': score},
                message=f"Custom score: {score:.3f}"
            )  # fmt: skip

        def _compute_custom_score(self, prompt: str, response: str) -> float:
            return 0.6

    report = create_custom_verifier_pipeline([CustomVerifier()]).verify("p", "r")
    assert report.result is VerificationResult.FAIL
    assert report.message == "CustomVerifier: Custom score: 0.600"
    assert report.details["CustomVerifier"]["details"] == {"custom_metric": 0.6}

    manager = PluginManager()
    manager.register(CustomVerifier(), "custom")
    config = IntegratedRewardConfig(strict_filtering=True, verification_threshold=0.5)
    _, accepted, rejected = create_integrated_reward_system(config, manager).process_episodes(make_episodes())
    assert (len(accepted), len(rejected)) == (0, 3)


def test_a_custom_reward_function() -> None:
    from hookline.rewards import RewardConfig, create_rollout_reward_processor

    score = 0.0
    processor = create_rollout_reward_processor(RewardConfig(custom_weights={"custom_reward": 1.0}))

    def custom_reward(prompt: str, response: str) -> float:
        """Custom reward function."""
        # Custom reward logic
        return score

    # Add to reward processor
    processor._custom_rewards = [custom_reward]

    rewards = processor.process_episode_rewards(make_episodes()[:1])
    plain = create_rollout_reward_processor(RewardConfig()).process_episode_rewards(make_episodes()[:1])
    assert rewards[0] < plain[0]


def test_rewards_are_mlx_arrays() -> None:
    mx = pytest.importorskip("mlx.core")
    from hookline.rewards import create_rollout_reward_processor

    rewards = create_rollout_reward_processor().process_episode_rewards(make_episodes())
    assert mx.mean(rewards).item() == pytest.approx(sum(rewards.tolist()) / 3)


def test_the_debug_mode(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    from hookline.rewards import create_integrated_reward_system

    # Enable debug logging
    caplog.set_level(logging.DEBUG)
    logging.basicConfig(level=logging.DEBUG)

    rewards, _, _ = create_integrated_reward_system().process_episodes(make_episodes())
    assert {record.name for record in caplog.records} == {"hookline.rewards"}

    # Check MLX array properties
    print(f"Rewards shape: {rewards.shape}")
    print(f"Rewards dtype: {rewards.dtype}")
    dtype = "mlx.core.float32" if hasattr(rewards, "at") else "float64"
    assert capsys.readouterr().out == f"Rewards shape: (3,)\nRewards dtype: {dtype}\n"


def test_the_device_is_that_of_mlx_where_arrays_have_none_of_their_own() -> None:
    from hookline.rewards import IntegratedRewardConfig, create_integrated_reward_system

    config = IntegratedRewardConfig(enable_mlx_compilation=False)
    rewards, _, _ = create_integrated_reward_system(config).process_episodes(make_episodes())
    assert f"Rewards device: {rewards.device}" == "Rewards device: cpu"
    mx = pytest.importorskip("mlx.core")
    rewards, _, _ = create_integrated_reward_system().process_episodes(make_episodes())
    if not hasattr(rewards, "device"):
        assert str(mx.default_device()).startswith("Device(")
