"""Text on its way from the rollout worker to the losses: rewarded and verified by the reward processor."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ahocorasick_rs")

from hookline import PluginManager, hookimpl
from hookline.policies import TransformerPolicy
from hookline.rewards import IntegratedRewardConfig, RewardConfig, RewardError, create_integrated_reward_system
from hookline.rollout import CurriculumConfig
from hookline.rollout.text import arithmetic_lessons
from hookline.testing import EventRecorder
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline.training.errors import TrainingError
from hookline_hookspecs import Episode, EpisodeBatch, Rollout, VerificationReport, VerificationResult

LESSON_ONLY = RewardConfig(length_weight=0, keyword_weight=0, perplexity_weight=0, accuracy_weight=0)
STRICT = IntegratedRewardConfig(LESSON_ONLY, strict_filtering=True, min_reward_threshold=0.0)


class NoSwearing:
    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> dict[str, Any]:
        bad = VerificationReport(VerificationResult.FAIL, 0.0, {}, "swears")
        return {"swearing": [bad if "damn" in episode.response else VerificationReport() for episode in batch]}


def rollout() -> Rollout:
    answers = {"7": 1.0, "8": 0.0, "damn 7": 1.0, "9": None}
    episodes = [Episode("3+4=", response, reward=reward) for response, reward in answers.items()]
    return Rollout(arrays={"rewards": np.zeros(4, np.float32)}, episodes=episodes)


def test_the_lessons_reward_is_an_input_and_what_is_rejected_has_no_part_in_its_group(
    hookline_manager: PluginManager,
) -> None:
    hookline_manager.register(NoSwearing())
    played = rollout()
    accepted = create_integrated_reward_system(STRICT, hookline_manager).process_rollout(played)
    assert accepted.tolist() == [True, True, False, False]
    right, wrong, rejected, unjudged = played.arrays["rewards"].tolist()
    assert (right, wrong) == (1.0, 0.0)
    assert math.isnan(rejected)
    assert math.isnan(unjudged)
    assert played.episodes[2].metadata["verification_message"] == "swearing: swears"


def test_a_lessons_reward_is_weighed_with_the_others(hookline_manager: PluginManager) -> None:
    config = IntegratedRewardConfig(
        RewardConfig(
            length_weight=1, keyword_weight=0, perplexity_weight=0, accuracy_weight=0, target_length=1,
            custom_weights={"lesson": 3.0},
        ),
        enable_verification=False,
        min_reward_threshold=0.0,
        batch_size=3,
    )  # fmt: skip
    played = rollout()
    create_integrated_reward_system(config, hookline_manager).process_rollout(played)
    assert played.arrays["rewards"].tolist() == [1.0, 0.25, 0.75, 1.0], "batches of three and of one"


def test_an_episode_whose_environment_failed_is_left_out_whatever_other_rewards_would_say(
    hookline_manager: PluginManager,
) -> None:
    class Generous:
        @hookimpl
        def score_episodes(self, batch: EpisodeBatch) -> dict[str, Any]:
            assert all("failure" not in episode.metadata for episode in batch)
            return {"generous": [1.0] * len(batch)}

    hookline_manager.register(Generous())
    system = create_integrated_reward_system(replace(STRICT, enable_verification=False), hookline_manager)
    played = rollout()
    played.episodes[1].metadata["failure"] = "raised ConnectionError: no reply"
    accepted = system.process_rollout(played)
    assert accepted.tolist() == [True, False, True, True]
    assert np.isnan(played.arrays["rewards"]).tolist() == [False, True, False, False]
    assert "accepted" not in played.episodes[1].metadata
    for episode in played.episodes:
        episode.metadata["failure"] = "gave no answer within 60 s"
    assert not system.process_rollout(played).any()


def beyond() -> Rollout:
    episodes = [Episode("3+4=", "7", reward=reward) for reward in (1.5, -0.25, -1.0, None, 0.5)]
    return Rollout("games", arrays={"rewards": np.zeros(5, np.float32)}, episodes=episodes)


def test_a_lessons_rewards_outside_of_0_to_1_are_mapped_by_their_range_and_clipped() -> None:
    config = IntegratedRewardConfig(
        replace(LESSON_ONLY, lesson_range=(-1.0, 1.0)), enable_verification=False, min_reward_threshold=0.0
    )
    played = beyond()
    create_integrated_reward_system(config, PluginManager()).process_rollout(played)
    np.testing.assert_allclose(played.arrays["rewards"], [1.0, 0.375, 0.0, np.nan, 0.75], rtol=1e-6)


def test_without_their_range_they_are_an_error_that_names_the_option_or_do_not_apply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = IntegratedRewardConfig(LESSON_ONLY, enable_verification=False, min_reward_threshold=0.0)
    problem = (
        "the reward of an episode of lesson 'games': the score must be in 0..1, got 1.5; set RewardConfig.lesson_range"
    )
    with pytest.raises(RewardError, match=problem):
        create_integrated_reward_system(config, PluginManager()).process_rollout(beyond())
    lenient = replace(config, reward_config=replace(LESSON_ONLY, on_failure="not_applicable"))
    played = beyond()
    create_integrated_reward_system(lenient, PluginManager()).process_rollout(played)
    np.testing.assert_allclose(played.arrays["rewards"], [np.nan, np.nan, np.nan, np.nan, 0.5], rtol=1e-6)
    assert f"{problem} to the lesson's rewards that become 0 and 1; 3 episodes get no reward from it" in caplog.text


def test_a_plugin_cannot_give_a_reward_by_the_lessons_name(hookline_manager: PluginManager) -> None:
    class Other:
        @hookimpl
        def score_episodes(self, batch: EpisodeBatch) -> dict[str, Any]:
            return {"lesson": [1.0] * len(batch)}

    hookline_manager.register(Other(), "other")
    system = create_integrated_reward_system(STRICT, hookline_manager)
    with pytest.raises(RewardError, match="reward 'lesson' of plugin 'other': another reward is also named 'lesson'"):
        system.process_rollout(rollout())


def test_scores_that_are_given_must_be_one_for_each_episode_in_0_to_1(hookline_manager: PluginManager) -> None:
    system = create_integrated_reward_system(STRICT, hookline_manager)
    episodes = rollout().episodes
    with pytest.raises(RewardError, match="reward 'lesson': 2 scores were given for 4 episodes"):
        system.process_episodes(episodes, {"lesson": [1.0, 0.0]})
    with pytest.raises(RewardError, match=r"reward 'lesson', episode 2: the score must be in 0..1, got 7.0"):
        system.process_episodes(episodes, {"lesson": [1.0, 0.0, 7.0, None]})


def test_an_episodes_own_reward_counts_only_where_it_is_given(hookline_manager: PluginManager) -> None:
    hookline_manager.register(NoSwearing())
    system = create_integrated_reward_system(STRICT, hookline_manager)
    rewards, accepted, _ = system.process_episodes(rollout().episodes)
    assert np.isnan(np.array(rewards)).all(), "no reward with a weight applies"
    assert accepted == []


def test_bounds_that_follow_the_data_are_saved_and_put_back(hookline_manager: PluginManager) -> None:
    config = IntegratedRewardConfig(
        LESSON_ONLY, min_reward_threshold=0.3, target_acceptance_rate=1.0, enable_verification=False
    )
    rewards = create_integrated_reward_system(config, hookline_manager)
    rewards.process_rollout(rollout())
    saved = rewards.state_dict()
    assert saved["min_reward"] < 0.3
    other = create_integrated_reward_system(config, PluginManager())
    other.load_state_dict(saved)
    assert other.state_dict() == saved


def test_without_a_verifier_the_run_goes_on_unverified(
    hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    train(hookline_manager)
    assert "no verifier is active: pip install hookline-verifiers" in caplog.text


def train(plugins: PluginManager) -> Trainer:
    trainer = Trainer(
        TrainerConfig(1, rollout=RolloutConfig(2, samples_per_prompt=4, minibatches=2, update_epochs=1)),
        CurriculumConfig(arithmetic_lessons("addition-1"), micro_eval_frequency=None, eval_frequency=None),
        TransformerPolicy(98, width=16, layers=1, heads=2, context=16),
        rewards=STRICT,
        plugins=plugins,
    )
    trainer.train()
    return trainer


def test_a_trainer_has_its_rollouts_rewarded_and_announces_it(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    trainer = train(hookline_manager)
    names = hookline_events.names()
    order = ["on_rollout_start", "pre_rewards", "post_rewards", "on_episodes_filtered", "on_rollout_end"]
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    assert trainer.state.rollout_stats["rollout/acceptance_rate"] == 1.0


def test_an_environment_has_rewards_of_its_own() -> None:
    with pytest.raises(TrainingError, match="`rewards` apply to text only, but these lessons are environments"):
        Trainer(TrainerConfig(1), rewards=STRICT)
