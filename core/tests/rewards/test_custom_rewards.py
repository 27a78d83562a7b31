"""Rewards of others: plugins and functions, what they may return, and what happens when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookline import PluginManager
from hookline.rewards import RewardConfig, RewardError, RolloutRewardProcessor
from hookline.testing import EventRecorder
from hookline_hookspecs import EpisodeBatch, TrainerState, hookimpl

EPISODES = [{"prompt": "p", "response": "one"}, {"prompt": "p", "response": "two"}]
NOTHING_ELSE = {"length_weight": 0, "keyword_weight": 0, "perplexity_weight": 0, "accuracy_weight": 0}


class Scores:
    def __init__(self, scores: Any, name: str = "own") -> None:
        self.result = {name: scores}

    @hookimpl
    def score_episodes(self, batch: EpisodeBatch) -> Any:
        if isinstance(self.result["own"], Exception):
            raise self.result["own"]
        return self.result


def rewards_with(manager: PluginManager, scores: Any, **config: Any) -> list[float]:
    manager.register(Scores(scores), "scorer")
    processor = RolloutRewardProcessor(RewardConfig(**{**NOTHING_ELSE, **config}), manager)
    return processor.process_episode_rewards(EPISODES).tolist()


def test_a_plugin_gives_rewards_of_its_own(hookline_manager: PluginManager) -> None:
    assert rewards_with(hookline_manager, [0.25, 1.0]) == [0.25, 1.0]


def test_none_leaves_a_reward_out_of_an_episodes_weighting(hookline_manager: PluginManager) -> None:
    rewards = rewards_with(hookline_manager, [None, 0.0], accuracy_weight=1.0)
    assert rewards == [1.0, 0.5]


def test_custom_weights_are_by_name(hookline_manager: PluginManager) -> None:
    rewards = rewards_with(hookline_manager, [0.0, 0.0], accuracy_weight=1.0, custom_weights={"own": 3.0})
    assert rewards == [0.25, 0.25]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.5], "reward 'own' of plugin 'scorer' has 1 scores for 2 episodes"),
        (7, "reward 'own' of plugin 'scorer' must have one score for each episode, got int"),
        ([0.5, float("nan")], "reward 'own' of plugin 'scorer', episode 1: the score is NaN; use None if"),
        ([2.0, 0.5], r"reward 'own' of plugin 'scorer', episode 0: the score must be in 0\.\.1, got 2\.0"),
        ([0.5, float("inf")], r"reward 'own' of plugin 'scorer', episode 1: the score must be in 0\.\.1, got inf"),
        (
            [10**400, 0.5],
            r"reward 'own' of plugin 'scorer', episode 0: the score must be a number in 0\.\.1, got 100000",
        ),
        (
            [10**5000, 0.5],
            r"episode 0: the score must be a number in 0\.\.1, got a value of type int that cannot be shown",
        ),
        (["x", 0.5], r"reward 'own' of plugin 'scorer', episode 0: the score must be a number in 0\.\.1, got 'x'"),
        (ValueError("no model"), "plugin 'scorer' failed in score_episodes: ValueError: no model"),
    ],
)
def test_what_is_no_score_names_the_reward_and_the_episode(
    hookline_manager: PluginManager, scores: Any, message: str
) -> None:
    with pytest.raises(RewardError, match=message):
        rewards_with(hookline_manager, scores)


def test_a_failing_plugin_can_be_said_to_not_apply(hookline_manager: PluginManager) -> None:
    rewards = rewards_with(hookline_manager, ValueError("no model"), accuracy_weight=1.0, on_failure="not_applicable")
    assert rewards == [1.0, 1.0]
    assert hookline_manager.faults.failures_of("scorer") == 1


def test_a_quarantined_plugin_is_missed_and_not_forgotten(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Scores(ValueError("no model")), "scorer")
    processor = RolloutRewardProcessor(RewardConfig(), hookline_manager)
    for _ in range(3):
        with pytest.raises(RewardError, match="plugin 'scorer' failed in score_episodes: ValueError: no model"):
            processor.process_episode_rewards(EPISODES)
    for _ in range(2):
        with pytest.raises(
            RewardError,
            match="plugin 'scorer' failed 3 times in a row in score_episodes and is no longer called in score_episodes",
        ):
            processor.process_episode_rewards(EPISODES)


def test_a_plugin_quarantined_for_failures_in_another_event_is_missed_by_the_rewards(
    hookline_manager: PluginManager,
) -> None:
    class FailsElsewhere(Scores):
        @hookimpl
        def on_epoch_end(self) -> None:
            raise ValueError("disk full")

    hookline_manager.register(FailsElsewhere([0.5, 0.5]), "scorer")
    for epoch in range(3):
        hookline_manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
    with pytest.raises(RewardError, match="plugin 'scorer' failed 3 times in a row in on_epoch_end and is no longer"):
        RolloutRewardProcessor(RewardConfig(), hookline_manager).process_episode_rewards(EPISODES)


def test_scores_that_are_not_by_name_are_an_error(hookline_manager: PluginManager) -> None:
    class Plain:
        @hookimpl
        def score_episodes(self) -> Any:
            return [0.5, 0.5]

    hookline_manager.register(Plain(), "plain")
    with pytest.raises(RewardError, match="plugin 'plain': score_episodes must return a dictionary"):
        RolloutRewardProcessor(RewardConfig(), hookline_manager).process_episode_rewards(EPISODES)


def test_two_rewards_of_one_name_are_an_error(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Scores([0.5, 0.5]), "first")
    hookline_manager.register(Scores([0.5, 0.5]), "second")
    with pytest.raises(RewardError, match="another reward is also named 'own'"):
        RolloutRewardProcessor(RewardConfig(), hookline_manager).process_episode_rewards(EPISODES)


def test_a_weight_for_a_reward_that_is_not_given_is_an_error(hookline_manager: PluginManager) -> None:
    with pytest.raises(RewardError, match=r"a weight for 'onw', but there is no such reward \(did you mean 'own'\?\)"):
        rewards_with(hookline_manager, [0.5, 0.5], custom_weights={"onw": 2.0})


def short(prompt: str, response: str) -> float | None:
    return None if response == "two" else 0.5


def failing(prompt: str, response: str) -> float:
    raise KeyError(response)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__


def unspeakable(prompt: str, response: str) -> float:
    raise Unspeakable


def nan(prompt: str, response: str) -> float:
    return float("nan")


def test_functions_are_rewards_too() -> None:
    config = RewardConfig(**NOTHING_ELSE | {"accuracy_weight": 1.0})
    processor = RolloutRewardProcessor(config, custom_rewards=[short])
    assert processor.process_episode_rewards(EPISODES).tolist() == [0.75, 1.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (failing, r"reward 'failing' failed on episode 0: KeyError: 'one'"),
        (unspeakable, r"reward 'unspeakable' failed on episode 0: Unspeakable \(its message cannot be shown\)"),
        (nan, "reward 'nan', episode 0: the score is NaN"),
    ],
)
def test_a_function_that_fails_is_named_with_the_episode(function: Callable[[str, str], float], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        RolloutRewardProcessor(custom_rewards=[function]).process_episode_rewards(EPISODES)


def test_a_function_that_fails_can_be_said_to_not_apply() -> None:
    config = RewardConfig(**NOTHING_ELSE | {"accuracy_weight": 1.0}, on_failure="not_applicable")
    assert RolloutRewardProcessor(config, custom_rewards=[failing]).process_episode_rewards(EPISODES).tolist() == [1, 1]


def test_two_functions_of_one_name_are_an_error() -> None:
    with pytest.raises(RewardError, match="another reward is also named 'short'"):
        RolloutRewardProcessor(custom_rewards=[short, short]).process_episode_rewards(EPISODES)


def test_each_batch_is_announced_before_and_after(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    processor = RolloutRewardProcessor(RewardConfig(batch_size=2), hookline_manager)
    rewards = processor.process_episode_rewards([*EPISODES, EPISODES[0]])
    assert hookline_events.names() == ["pre_rewards", "score_episodes", "post_rewards"] * 2
    announced = [event.arguments["rewards"] for event in hookline_events.of("post_rewards")]
    assert [*announced[0], *announced[1]] == pytest.approx(rewards.tolist())
    batch = hookline_events.of("post_rewards")[0].arguments["batch"]
    assert [episode.reward for episode in batch] == pytest.approx(rewards.tolist()[:2])
