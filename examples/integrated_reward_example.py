"""Rewards, verification and filtering of episodes, without training.

python examples/integrated_reward_example.py
"""

from hookline.rewards import (
    IntegratedRewardConfig,
    RewardConfig,
    create_default_verifier_pipeline,
    create_integrated_reward_system,
    create_rollout_reward_processor,
    process_episodes_with_quality_control,
)

QUESTION = "Explain quantum computing"
EPISODES = [
    {
        "prompt": QUESTION,
        "response": "A quantum computer works on qubits. An algorithm sets them up so that wrong answers cancel out "
        "and the right one remains. For example, it can find the factors of a number that way.",
    },
    {"prompt": QUESTION, "response": "It is a computer. It is a computer. It is a computer. It is a computer."},
    {"prompt": QUESTION, "response": "Only a stupid idiot would ask that."},
    {"prompt": QUESTION, "response": ""},
]
REWARDS = RewardConfig(
    length_weight=0.2,
    keyword_weight=0.3,
    perplexity_weight=0.3,
    accuracy_weight=0.2,
    target_length=35,
    keywords=["quantum", "qubits", "algorithm"],
)


def rewards_alone() -> None:
    processor = create_rollout_reward_processor(REWARDS)
    rewards = processor.process_episode_rewards(EPISODES)
    print("rewards:", ", ".join(f"{reward:.2f}" for reward in rewards.tolist()))
    print(f"shape {rewards.shape}, dtype {rewards.dtype}")  # an mx.array where MLX is installed, else a NumPy array


def verification_alone() -> None:
    verifier = create_default_verifier_pipeline()
    reports = verifier.verify_batch([e["prompt"] for e in EPISODES], [e["response"] for e in EPISODES])
    for report in reports:
        print(f"verified: {report.result.value:<8} {report.score:.2f}  {report.message}")


def both_together() -> None:
    config = IntegratedRewardConfig(
        reward_config=REWARDS, verification_threshold=0.7, strict_filtering=True, min_reward_threshold=0.3
    )
    system = create_integrated_reward_system(config)
    try:
        _, accepted, rejected = system.process_episodes(EPISODES)
        quality = system.get_quality_metrics(accepted + rejected)
    finally:
        system.close()
    print(f"accepted {len(accepted)} of {len(EPISODES)}; mean reward {quality['mean_reward']:.2f}")
    for episode in rejected:
        print(f"rejected: {episode['rejection_reason']}")


def in_one_call() -> None:
    config = IntegratedRewardConfig(reward_config=REWARDS, verification_threshold=0.5, strict_filtering=False)
    _, accepted, _, metrics = process_episodes_with_quality_control(EPISODES, config)
    print(f"lenient: accepted {len(accepted)}, acceptance rate {metrics['acceptance_rate']:.2f}")


if __name__ == "__main__":
    rewards_alone()
    verification_alone()
    both_together()
    in_one_call()
