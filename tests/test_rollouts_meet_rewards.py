"""Rollouts of worker processes go through the reward system: the document's block on integration, as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.rewards import IntegratedRewardConfig, RewardConfig, create_integrated_reward_system
from hookline.rollout import create_rollout_coordinator


def make_parts() -> tuple[type, type]:
    """Classes of a function's own, which travel to worker processes by value."""

    class MockEnvironment:
        def reset(self):
            return "What is ML?", {"reference": "machine learning"}

        def step(self, action):
            return "", 1.0, True, False, {}

    class MockPolicy:
        def __call__(self, prompt):
            return "It is machine learning: a program that gets better with the examples it sees.", {"logprob": -0.5}

    return MockEnvironment, MockPolicy


def test_the_document_block_on_integration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    MockEnvironment, MockPolicy = make_parts()  # noqa: N806
    config = IntegratedRewardConfig(reward_config=RewardConfig(target_length=12))

    # Create rollout coordinator
    coordinator = create_rollout_coordinator(
        env_fn=lambda: MockEnvironment(),
        policy_fn=lambda: MockPolicy(),
        algorithm='ppo',
        num_workers=4
    )  # fmt: skip

    # Create reward system
    reward_system = create_integrated_reward_system(config)

    # Collect rollouts
    buffer = coordinator.collect()

    # Process with reward system
    rewards, accepted, rejected = reward_system.process_buffer(buffer)

    coordinator.close()
    reward_system.close()
    assert len(rewards) == len(buffer) == len(accepted) + len(rejected) == 32
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
    assert all(episode.metadata["verification_result"] == "pass" for episode in accepted)
