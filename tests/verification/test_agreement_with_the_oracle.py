"""The verifiers, their combination and the filter against the plain per-episode implementation."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.rewards import IntegratedRewardConfig, create_default_verifier_pipeline, create_integrated_reward_system

PIECES = [
    "idiot",
    "Idiots!",
    "kill yourself",
    "kill  you",
    "skill",
    "Scheiße",
    "estu\u0301pido",
    "白痴",
    "غبي",
    "everyone\r\nknows",
    "because",
    "according to",
    "100% true",
    "trust me",
    "word",
    "End.",
    "x" * 25,
    "\0",
    "👩\u200d🚀",
    "\u2028",
    "。",
    "hate you people",
]
texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=40).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.integers(0, 700).map(lambda count: " ".join(f"word{number % 90}" for number in range(count)) + "."),
)


@given(responses=st.lists(texts, min_size=1, max_size=30))
def test_verdicts_are_those_of_the_oracle(
    responses: list[str], oracle: ModuleType, text_oracle: ModuleType, word_lists: dict[str, list[str]]
) -> None:
    reports = create_default_verifier_pipeline().verify_batch(["p"] * len(responses), responses)
    for response, report in zip(responses, reports, strict=True):
        expected = oracle.verify(text_oracle, response, word_lists)
        assert {name: (own["score"], own["result"]) for name, own in report.details.items()} == {
            name: (pytest.approx(score, abs=1e-6), result) for name, (score, result) in expected.items()
        }
        score, result = oracle.combine(expected)
        assert (report.score, report.result) == (pytest.approx(score, abs=1e-6), result)


@pytest.mark.parametrize("strict", [True, False])
@settings(max_examples=40, deadline=None)
@given(responses=st.lists(texts, min_size=1, max_size=60))
def test_the_filter_decides_as_the_oracle_does(
    strict: bool, responses: list[str], oracle: ModuleType, text_oracle: ModuleType, word_lists: dict[str, list[str]]
) -> None:
    found = [{"prompt": str(number), "response": response} for number, response in enumerate(responses)]
    config = IntegratedRewardConfig(strict_filtering=strict, min_reward_threshold=0.6, enable_mlx_compilation=False)
    with create_integrated_reward_system(config) as system:
        rewards, accepted, rejected = system.process_episodes(found)
    verdicts = [oracle.combine(oracle.verify(text_oracle, response, word_lists)) for response in responses]
    bounds = {"strict": strict, "min_reward": 0.6, "max_reward": 1.0, "least": 0.7}
    decisions = [
        oracle.accepts(reward, verdict, **bounds) for reward, verdict in zip(rewards.tolist(), verdicts, strict=True)
    ]
    assert [int(episode["prompt"]) for episode in accepted] == [i for i, passes in enumerate(decisions) if passes]
    assert [int(episode["prompt"]) for episode in rejected] == [i for i, passes in enumerate(decisions) if not passes]
