"""What each of the four rewards is, and how they are put together."""

from __future__ import annotations

import logging
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hookline import PluginManager
from hookline.rewards import (
    IntegratedRewardConfig,
    RewardConfig,
    RewardError,
    RolloutRewardProcessor,
    TextVerifier,
    VerificationReport,
    VerificationResult,
    compute_reward_vector,
    create_integrated_reward_system,
    create_rollout_reward_processor,
    process_episodes_with_quality_control,
    scoring,
)
from hookline_hookspecs import Episode

WEIGHTS = ("length_weight", "keyword_weight", "perplexity_weight", "accuracy_weight")


def only(weight: str, **config: Any) -> RewardConfig:
    return RewardConfig(**{name: float(name == weight) for name in WEIGHTS}, **config)


def reward_of(config: RewardConfig, response: str, prompt: str = "", **fields: Any) -> float:
    return float(RolloutRewardProcessor(config).process_episode_rewards([Episode(prompt, response, **fields)])[0])


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


@pytest.mark.parametrize(
    ("count", "expected"), [(50, 1.0), (40, 1.0), (60, 1.0), (30, 0.75), (80, 0.5), (100, 0.0), (500, 0.0), (0, 0.0)]
)
def test_length_is_full_within_a_fifth_of_the_target_and_then_falls_to_nothing(count: int, expected: float) -> None:
    assert reward_of(only("length_weight", target_length=50), words(count)) == pytest.approx(expected)


def test_keywords_count_by_share_and_those_that_the_prompt_has_not_count_half_again() -> None:
    config = only("keyword_weight", keywords=["quantum", "computer", "algorithm", "qubit"])
    assert reward_of(config, "A Quantum leap", prompt="quantum?") == pytest.approx(0.25)
    assert reward_of(config, "A Quantum leap", prompt="physics?") == pytest.approx(0.375)
    assert reward_of(config, "Quantum computer, algorithm: QUBIT") == 1.0


def test_keywords_are_found_as_whole_words_only() -> None:
    config = only("keyword_weight", keywords=["art", "C++", "machine learning"])
    assert reward_of(config, "a cart started smart") == 0.0
    assert reward_of(config, "ART! c++, machine\n learning") == 1.0


def test_a_keyword_of_a_script_without_spaces_is_found_within_a_sentence() -> None:
    assert reward_of(only("keyword_weight", keywords=["量子"]), "我喜欢量子计算") == 1.0


def test_without_keywords_the_keyword_reward_does_not_apply() -> None:
    assert math.isnan(reward_of(only("keyword_weight"), "some text"))
    with_keywords_unset = reward_of(RewardConfig(keyword_weight=1000.0), words(50) + ".")
    assert with_keywords_unset == pytest.approx(reward_of(RewardConfig(keyword_weight=0.0), words(50) + "."))


def test_perplexity_comes_from_the_log_probabilities_that_the_rollout_has() -> None:
    config = only("perplexity_weight")
    assert reward_of(config, "one two", logprobs=[-1.0, -3.0]) == pytest.approx(math.exp(-2.0))
    assert reward_of(config, "one two", logprobs=np.zeros(2, np.float32)) == 1.0
    assert reward_of(config, "one two", logprobs=[-math.inf, -1.0]) == 0.0


def test_without_log_probabilities_perplexity_is_a_guess_from_the_words() -> None:
    config = only("perplexity_weight")
    assert reward_of(config, "One two three four.") == 1.0
    assert reward_of(config, "one two three four") == pytest.approx(0.7)
    assert reward_of(config, "the the the the.") == pytest.approx(0.5)
    assert reward_of(config, f"one two three {'x' * 30}.") == pytest.approx(0.75)
    assert reward_of(config, "one two three four.", logprobs=[]) == 1.0


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        ("Paris", "paris", 1.0),
        (" Paris. ", "Paris", 1.0),
        ("The answer is 8", "8", 1.0),
        ("3 + 5 = 9", "8", 0.0),
        ("It costs 1,234.50 dollars", "1234.5", 1.0),
        ("I do not know", "8", 0.0),
        ("It is 2e400", "1e400", 0.0),
        ("1e400", "8", 0.0),
        ("a cat sat", "the cat sat", 2 / 3),
        ("nothing in common", "the cat sat", 0.0),
    ],
)
def test_accuracy_is_agreement_with_the_reference(response: str, reference: str, expected: float) -> None:
    assert reward_of(only("accuracy_weight"), response, reference=reference) == pytest.approx(expected)


def test_without_a_reference_accuracy_is_how_little_a_response_hedges() -> None:
    config = only("accuracy_weight")
    assert reward_of(config, "It is so.") == 1.0
    assert reward_of(config, "Maybe it is so.") == pytest.approx(0.85)
    assert reward_of(config, "maybe perhaps " * 20) == pytest.approx(0.3)


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_response_has_nothing_of_all_four(text: str) -> None:
    extras = {"logprobs": [-0.1], "reference": "8"}
    for weight in WEIGHTS:
        assert reward_of(only(weight, keywords=["word"]), text, **extras) == 0.0


def test_an_episodes_metadata_overrides_target_keywords_and_answer() -> None:
    assert reward_of(only("length_weight"), words(10), metadata={"target_length": 10}) == 1.0
    own = reward_of(only("keyword_weight", keywords=["other"]), "cat", metadata={"keywords": ["cat"]})
    assert own == 1.0
    assert reward_of(only("accuracy_weight"), "so it is 7", reference="8", metadata={"answer": 7}) == 1.0


def test_weights_count_relative_to_each_other() -> None:
    response = words(50)
    small, large = RewardConfig(0.1, 0.2, 0.3, 0.4), RewardConfig(1, 2, 3, 4)
    assert reward_of(small, response) == pytest.approx(reward_of(large, response))


def test_the_weighted_sum_is_that_of_compute_reward_vector(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RewardConfig(length_weight=1.0, keyword_weight=2.0, perplexity_weight=3.0, accuracy_weight=10.0)
    processor = RolloutRewardProcessor(config, compiled=compiled)
    episodes = [Episode(response="Maybe it is so.", metadata={"target_length": 4, "keywords": ["so"]})]
    expected = (
        compute_reward_vector(*(np.array([score]) for score in (1.0, 1.0, 1.0, 0.85)), np.array([1, 2, 3, 10])) / 16
    )
    assert processor.process_episode_rewards(episodes).tolist() == pytest.approx(expected.tolist())

    given: list[Any] = []

    def halved(*columns: Any) -> Any:
        given.append(columns)
        return compute_reward_vector(*columns) / 2

    monkeypatch.setattr(scoring, "compute_reward_vector", halved)
    scoring._compiled.cache_clear()
    assert processor.process_episode_rewards(episodes).tolist() == pytest.approx((expected / 2).tolist())
    scoring._compiled.cache_clear()
    assert len(given) == 1
    assert len(given[0]) == 5


def test_rewards_keep_the_order_of_episodes_over_batches_and_are_given_to_records() -> None:
    records = [Episode(response=words(count)) for count in range(100)]
    processor = create_rollout_reward_processor(only("length_weight", batch_size=7))
    rewards = processor.process_episode_rewards(records)
    assert [record.reward for record in records] == pytest.approx(rewards.tolist())
    assert rewards.argmax() == 40


def test_no_episodes_have_no_rewards() -> None:
    assert create_rollout_reward_processor().process_episode_rewards([]).shape == (0,)


def test_dictionaries_are_not_changed() -> None:
    episode = {"prompt": "p", "response": "some text"}
    create_rollout_reward_processor().process_episode_rewards([episode])
    assert episode == {"prompt": "p", "response": "some text"}


@pytest.mark.parametrize(
    ("episode", "message"),
    [
        ({"prompt": "p"}, "episode 1 has no 'response'; it has 'prompt'"),
        ({"response": 5}, "episode 1: response must be a string, got int"),
        ({"response": "r", "prompt": None}, "episode 1: prompt must be a string, got NoneType"),
        ("text", "episode 1 must be an Episode or a dictionary, got str"),
        ({"response": "r", "metadata": []}, "episode 1: metadata must be a dictionary, got list"),
        (
            {"response": "r", "target_length": 0},
            r"episode 1: metadata\['target_length'\] must be a number above 0, got 0",
        ),
        (
            {"response": "r", "target_length": 10**400},
            r"episode 1: metadata\['target_length'\] must be a number above 0, got 10000",
        ),
        (
            {"response": "r", "keywords": "cat"},
            r"episode 1: metadata\['keywords'\] must be a list of strings, got 'cat'",
        ),
        ({"response": "r", "keywords": [" "]}, r"episode 1: metadata\['keywords'\] has ' ': every keyword"),
        ({"response": "r", "answer": [1]}, "episode 1: its answer must be a string or a number, got list"),
        ({"response": "r", "logprobs": ["x"]}, "episode 1: its log-probabilities cannot be read as numbers"),
        ({"response": "r", "logprobs": [math.nan]}, "episode 1: log-probabilities must be numbers of at most 0"),
        ({"response": "r", "logprobs": [2.0]}, "episode 1: log-probabilities must be numbers of at most 0"),
    ],
)
def test_a_bad_episode_is_named_with_what_is_wrong(episode: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        create_rollout_reward_processor().process_episode_rewards([{"response": "fine"}, episode])


def test_where_mlx_is_missing_numpy_computes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlx.core", None)
    with caplog.at_level(logging.INFO, "hookline.rewards"):
        rewards = create_rollout_reward_processor().process_episode_rewards([{"response": words(50)}])
    assert 0.0 < rewards[0] < 1.0
    assert 'pip install "hookline[mlx]"' in caplog.text


def test_rewards_are_arrays_of_the_library_that_computed_them(compiled: bool) -> None:
    config = IntegratedRewardConfig(enable_verification=False, enable_mlx_compilation=compiled)
    episodes = [{"response": words(count)} for count in range(40, 50)]
    with create_integrated_reward_system(config) as system:
        returned = [
            RolloutRewardProcessor(compiled=compiled).process_episode_rewards(episodes),
            RolloutRewardProcessor(compiled=compiled).process_episode_rewards([]),
            system.process_episodes(episodes)[0],
            system.process_episodes([])[0],
            system.process_buffer(SimpleNamespace(episodes=episodes))[0],
            process_episodes_with_quality_control(episodes, config)[0],
        ]
    assert [rewards.shape for rewards in returned] == [(10,), (0,), (10,), (0,), (10,), (10,)]
    if not compiled:
        assert all(isinstance(rewards, np.ndarray) and rewards.dtype == np.float64 for rewards in returned)
        return
    import mlx.core as mx

    assert all(isinstance(rewards, mx.array) and rewards.dtype == mx.float32 for rewards in returned)
    assert mx.mean(returned[0]).item() == pytest.approx(float(np.mean(np.array(returned[0]))))


def test_bounds_are_compared_with_all_digits_of_a_reward(compiled: bool) -> None:
    config = IntegratedRewardConfig(
        only("accuracy_weight"), enable_verification=False, min_reward_threshold=0.85, enable_mlx_compilation=compiled
    )
    # The nearest float32 to 0.85 is below it.
    with create_integrated_reward_system(config) as system:
        _, accepted, _ = system.process_episodes([{"response": "Maybe it is so."}])
    assert accepted[0]["reward"] == pytest.approx(0.85, abs=1e-12)


def test_the_debug_log_says_what_was_done(compiled: bool, caplog: pytest.LogCaptureFixture) -> None:
    config = IntegratedRewardConfig(batch_size=2, enable_mlx_compilation=compiled, strict_filtering=True)
    manager = PluginManager()
    manager.register(Short(), "short")
    with caplog.at_level(logging.DEBUG), create_integrated_reward_system(config, manager) as system:
        system.process_episodes([{"response": words(count)} for count in (50, 3, 50)])
    records = [record for record in caplog.records if record.name == "hookline.rewards"]
    assert {record.levelname for record in records} == {"DEBUG"}
    text = "\n".join(record.getMessage() for record in records)
    library = "MLX" if compiled else "NumPy"
    assert re.search(rf"rewarded a batch of 2 episodes by {library} in [\d.]+ ms: from 0\.\d+ to 0\.\d+, mean", text)
    assert "rewarded a batch of 1 episodes by" in text
    assert "verified 2 episodes: combined: 1 pass, 0 warning, 1 fail; short: 1 pass, 0 warning, 1 fail" in text
    assert "accepted 1 of 2 episodes" in text
    assert "accepted 1 of 1 episodes" in text
    assert f"3 rewards: shape (3,), dtype {'mlx.core.float32' if compiled else 'float64'}" in text


class Short(TextVerifier):
    """FAIL for less than ten words."""

    name = "short"

    def verify(self, prompt: str, response: str) -> VerificationReport:
        return VerificationReport(VerificationResult.FAIL, 0.0) if len(response) < 20 else VerificationReport()
