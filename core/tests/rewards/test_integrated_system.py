"""The integrated system: filtering, what episodes carry, events, quality metrics, thresholds that follow the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hookline import PluginManager
from hookline.rewards import (
    IntegratedRewardConfig,
    IntegratedRewardSystem,
    RewardConfig,
    RewardError,
    TextVerifier,
    VerificationReport,
    VerificationResult,
    create_integrated_reward_system,
)
from hookline.testing import EventRecorder
from hookline_hookspecs import Episode, TrainerState

PASS, WARNING, FAIL = VerificationResult.PASS, VerificationResult.WARNING, VerificationResult.FAIL
EVENTS = ["pre_rewards", "score_episodes", "post_rewards", "verify_episodes", "on_episodes_filtered"]


class Judge(TextVerifier):
    """Reads its verdict from the prompt: a score, and FAIL for those below 0.4."""

    name = "judge"

    def verify(self, prompt: str, response: str) -> VerificationReport:
        score = float(prompt)
        return VerificationReport(FAIL if score < 0.4 else PASS, score, {"read": prompt}, f"judged {score}")


def by_response(prompt: str, response: str) -> float | None:
    return None if response == "none" else float(response)


def config(**fields: Any) -> IntegratedRewardConfig:
    weights = {"length_weight": 0.0, "keyword_weight": 0.0, "perplexity_weight": 0.0, "accuracy_weight": 0.0}
    return IntegratedRewardConfig(reward_config=RewardConfig(**weights), **fields)


def system_with(manager: PluginManager, **fields: Any) -> IntegratedRewardSystem:
    if not manager.has_plugin("judge"):
        manager.register(Judge(), "judge")
    return create_integrated_reward_system(config(**fields), manager, custom_rewards=[by_response])


def episode(reward: float | str, verification: float) -> Episode:
    return Episode(prompt=str(verification), response=str(reward))


@pytest.mark.parametrize(
    ("reward", "verification", "strict", "lenient"),
    [
        (0.5, 0.8, True, True),
        (0.5, 0.5, False, True),
        (0.1, 0.8, False, True),
        (0.1, 0.5, False, False),
        (0.3, 0.7, True, True),  # both bounds are inclusive
        (0.9, 0.7, True, True),
        (0.95, 0.7, False, True),
        (0.95, 0.1, False, False),
    ],
)
def test_strict_wants_both_and_lenient_either(
    hookline_manager: PluginManager, reward: float, verification: float, strict: bool, lenient: bool
) -> None:
    for strictness, expected in ((True, strict), (False, lenient)):
        system = system_with(hookline_manager, strict_filtering=strictness, max_reward_threshold=0.9)
        rewards, accepted, rejected = system.process_episodes([episode(reward, verification)])
        assert rewards.tolist() == pytest.approx([reward])
        assert (len(accepted), len(rejected)) == ((1, 0) if expected else (0, 1))
        system.close()


def test_an_episode_that_fails_does_not_pass_verification_whatever_the_threshold(
    hookline_manager: PluginManager,
) -> None:
    system = system_with(hookline_manager, strict_filtering=True, verification_threshold=0.0)
    _, accepted, _ = system.process_episodes([episode(0.5, 0.39), episode(0.5, 0.41)])
    assert [found.prompt for found in accepted] == ["0.41"]


def test_an_episode_without_a_reward_is_rejected_even_if_it_is_verified(hookline_manager: PluginManager) -> None:
    system = system_with(hookline_manager)
    rewards, accepted, rejected = system.process_episodes([episode("none", 1.0)])
    assert math.isnan(rewards[0])
    assert (accepted, len(rejected)) == ([], 1)


def test_without_verification_the_reward_decides(hookline_manager: PluginManager) -> None:
    system = create_integrated_reward_system(
        config(enable_verification=False), hookline_manager, custom_rewards=[by_response]
    )
    _, accepted, rejected = system.process_episodes([episode(0.5, 0.0), episode(0.2, 1.0)])
    assert accepted[0].metadata == {"reward": 0.5, "accepted": True, "rejection_reason": ""}
    reason = "the reward is below 0.3"
    assert rejected[0].metadata == {"reward": 0.2, "accepted": False, "rejection_reason": reason}


def test_records_carry_what_was_found_in_their_metadata(hookline_manager: PluginManager) -> None:
    given = episode(0.5, 0.3)
    given.metadata["own"] = "kept"
    _, _, rejected = system_with(hookline_manager, strict_filtering=True).process_episodes([given])
    assert rejected[0] is given
    assert given.reward == 0.5
    assert given.metadata == {
        "own": "kept",
        "reward": 0.5,
        "accepted": False,
        "rejection_reason": "the verification score is not 0.7 or more, verification fails",
        "verification_score": 0.3,
        "verification_result": FAIL,
        "verification_message": "judge: judged 0.3",
        "verification_details": {
            "judge": {"result": FAIL, "score": 0.3, "message": "judged 0.3", "details": {"read": "0.3"}}
        },
    }


@pytest.mark.parametrize(
    ("reward", "verification", "reason"),
    [
        (0.1, 0.5, "the reward is below 0.3, the verification score is not 0.7 or more"),
        (0.95, 0.8, "the reward is above 0.9"),
        ("none", 0.8, "no reward applies"),
        (0.5, 0.8, ""),
    ],
)
def test_rejected_episodes_say_which_bounds_they_missed(
    hookline_manager: PluginManager, reward: float | str, verification: float, reason: str
) -> None:
    given = episode(reward, verification)
    system_with(hookline_manager, strict_filtering=True, max_reward_threshold=0.9).process_episodes([given])
    assert given.metadata["rejection_reason"] == reason


def test_dictionaries_come_back_as_new_ones_with_what_was_found(hookline_manager: PluginManager) -> None:
    given = {"prompt": "0.8", "response": "0.5", "own": "kept"}
    _, accepted, _ = system_with(hookline_manager).process_episodes([given])
    assert given == {"prompt": "0.8", "response": "0.5", "own": "kept"}
    found = accepted[0]
    assert found["own"] == "kept"
    assert (found["reward"], found["verification_score"], found["verification_result"]) == (0.5, 0.8, PASS)
    assert found["verification_message"] == "passed by judge"


def test_all_events_are_emitted_for_each_batch(hookline_manager: PluginManager, hookline_events: EventRecorder) -> None:
    system = system_with(hookline_manager, batch_size=2, strict_filtering=True)
    given = [episode(0.5, 0.8), episode(0.1, 0.8), episode(0.6, 0.8)]
    rewards, _, _ = system.process_episodes(given)
    assert hookline_events.names() == EVENTS * 2
    first, second = hookline_events.of("on_episodes_filtered")
    assert first.arguments["accepted"] == [given[0]]
    assert first.arguments["rejected"] == [given[1]]
    assert second.arguments["accepted"] == [given[2]]
    assert second.arguments["batch"].features.words.tolist() == [1.0]
    assert rewards.tolist() == pytest.approx([0.5, 0.1, 0.6])


@pytest.mark.parametrize("as_buffer", [lambda found: SimpleNamespace(episodes=found), list, iter, tuple])
def test_a_buffer_is_anything_that_has_or_is_episodes(
    hookline_manager: PluginManager, as_buffer: Callable[[list[Episode]], Any]
) -> None:
    buffer = as_buffer([episode(0.5, 0.8), episode(0.1, 0.1)])
    rewards, accepted, rejected = system_with(hookline_manager).process_buffer(buffer)
    assert (len(rewards), len(accepted), len(rejected)) == (2, 1, 1)


@pytest.mark.parametrize("buffer", [5, "text", {"episodes": []}, SimpleNamespace(episodes=None)])
def test_what_holds_no_episodes_is_no_buffer(hookline_manager: PluginManager, buffer: Any) -> None:
    with pytest.raises(RewardError, match=f"{type(buffer).__name__} is not a buffer"):
        system_with(hookline_manager).process_buffer(buffer)


def test_no_episodes_give_nothing(hookline_manager: PluginManager) -> None:
    rewards, accepted, rejected = system_with(hookline_manager).process_episodes([])
    assert (rewards.shape, accepted, rejected) == ((0,), [], [])


def test_quality_metrics_are_of_all_episodes(hookline_manager: PluginManager) -> None:
    system = system_with(
        hookline_manager,
        strict_filtering=True,
        quality_measures={"longest": lambda found: max(len(e.response) for e in found)},
    )
    _, accepted, rejected = system.process_episodes(
        [episode(0.2, 0.9), episode(0.4, 0.5), episode(0.6, 0.3), episode(1.0, 0.9), episode("none", 0.9)]
    )
    metrics = system.get_quality_metrics(accepted + rejected)
    assert metrics == pytest.approx(
        {
            "episodes": 5,
            "mean_reward": 0.55,
            "std_reward": float(np.std([0.2, 0.4, 0.6, 1.0])),
            "min_reward": 0.2,
            "max_reward": 1.0,
            "median_reward": 0.5,
            "acceptance_rate": 0.2,
            "mean_verification_score": 0.7,
            "pass_count": 4,
            "warning_count": 0,
            "fail_count": 1,
            "failure_rate/judge": 0.2,
            "longest": 4,
        }
    )


def test_metrics_of_episodes_that_were_not_processed_are_an_error(hookline_manager: PluginManager) -> None:
    with pytest.raises(RewardError, match="episode 0 was not processed"):
        system_with(hookline_manager).get_quality_metrics([episode(0.5, 0.5)])


def test_a_failing_quality_measure_is_named(hookline_manager: PluginManager) -> None:
    system = system_with(hookline_manager, quality_measures={"own": lambda found: 1 / 0})
    with pytest.raises(RewardError, match="quality measure 'own' failed on 1 episodes: ZeroDivisionError"):
        system.process_episodes([episode(0.5, 0.5)])


def test_live_metrics_are_those_of_the_latest_episodes(hookline_manager: PluginManager) -> None:
    system = system_with(hookline_manager, batch_size=2, quality_measures={"own": len})
    assert hookline_manager.emit.collect_metrics(state=TrainerState()) == []
    _, accepted, rejected = system.process_episodes([episode(0.5, 0.8), episode(0.1, 0.1), episode(0.7, 0.9)])
    collected = hookline_manager.emit.collect_metrics(state=TrainerState())
    expected = system.get_quality_metrics(accepted + rejected)
    expected |= {"min_reward_threshold": 0.3, "verification_threshold": 0.7}
    assert collected == [pytest.approx({f"rewards/{name}": value for name, value in expected.items()})]
    system.close()
    assert hookline_manager.emit.collect_metrics(state=TrainerState()) == []


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
def test_thresholds_move_until_the_target_share_is_accepted(hookline_manager: PluginManager, target: float) -> None:
    rng = np.random.default_rng(5)
    system = system_with(
        hookline_manager,
        batch_size=64,
        strict_filtering=True,
        target_acceptance_rate=target,
        verification_threshold=0.0,
    )
    shares = []
    for _ in range(150):
        found = [episode(reward, 1.0) for reward in rng.uniform(0.0, 1.0, 64).round(6)]
        _, accepted, _ = system.process_episodes(found)
        shares.append(len(accepted) / 64)
    assert np.mean(shares[-50:]) == pytest.approx(target, abs=0.05)
    assert 0.0 <= system.filter.min_reward_threshold <= 1.0


def test_without_a_target_thresholds_stay(hookline_manager: PluginManager) -> None:
    system = system_with(hookline_manager)
    system.process_episodes([episode(1.0, 1.0)] * 10)
    assert (system.filter.min_reward_threshold, system.filter.verification_threshold) == (0.3, 0.7)


def test_close_leaves_the_manager_to_its_owner_and_may_be_called_twice(hookline_manager: PluginManager) -> None:
    system = system_with(hookline_manager)
    system.close()
    system.close()
    assert hookline_manager.has_plugin("judge")


def test_both_backends_decide_alike(hookline_manager: PluginManager, compiled: bool) -> None:
    system = system_with(hookline_manager, enable_mlx_compilation=compiled, strict_filtering=True)
    given = [episode(round(reward / 100, 2), 0.7) for reward in range(100)]
    _, accepted, _ = system.process_episodes(given)
    assert [float(found.response) for found in accepted] == [round(reward / 100, 2) for reward in range(30, 100)]
