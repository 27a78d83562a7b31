"""Collects rollouts with two workers, then rewards and filters the whole buffer.

python examples/rollout_integration_example.py
"""

import random

from hookline.rewards import IntegratedRewardConfig, RewardConfig, create_integrated_reward_system
from hookline.rollout import create_rollout_coordinator

QUESTIONS = {"What is ML?": "machine learning", "What is RL?": "reinforcement learning"}


class QuestionEnvironment:
    """One question per episode. The info has the reference answer and its length, for rewards and verifiers."""

    def reset(self, *, seed=None):
        self.question = random.Random(seed).choice(sorted(QUESTIONS))
        return self.question, {"reference": QUESTIONS[self.question], "target_length": 2}

    def step(self, action):
        return "", float(QUESTIONS[self.question] in action.lower()), True, False, {}


class GuessingPolicy:
    """Always gives the same answer, which is right for one of the questions."""

    def __call__(self, question):
        return "Machine learning.", {"logprob": -0.4}


def main() -> None:
    config = IntegratedRewardConfig(
        RewardConfig(length_weight=0.2, keyword_weight=0.0, perplexity_weight=0.0, accuracy_weight=0.8),
        min_reward_threshold=0.8,
        strict_filtering=True,
    )
    coordinator = create_rollout_coordinator(
        env_fn=lambda: QuestionEnvironment(), policy_fn=lambda: GuessingPolicy(), algorithm="grpo", num_workers=2
    )
    reward_system = create_integrated_reward_system(config)
    try:
        buffer = coordinator.collect()
        rewards, accepted, rejected = reward_system.process_buffer(buffer)
        metrics = reward_system.get_quality_metrics(accepted + rejected)
    finally:
        coordinator.close()
        reward_system.close()
    print(f"{len(buffer)} episodes, {len(accepted)} accepted, {len(rejected)} rejected")
    print(f"rewards from {min(rewards):.2f} to {max(rewards):.2f}, acceptance rate {metrics['acceptance_rate']:.2f}")
    print("first rejected:", rejected[0].prompt, "-", rejected[0].metadata["rejection_reason"])


if __name__ == "__main__":
    main()
