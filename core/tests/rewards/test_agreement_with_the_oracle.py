"""Both backends against the plain per-episode implementation, over texts of every kind."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.rewards import RewardConfig, RolloutRewardProcessor
from hookline_hookspecs import Episode

KEYWORDS = ["quantum", "naïve", "machine learning", "C++", "量子", "שלום"]
PIECES = [
    "quantum",
    "Quantum.",
    "quantums",
    "machine\r\nlearning",
    "machine  learning",
    "nai\u0308ve",
    "NAÏVE",
    "c++",
    "c++x",
    "量子计算很难。",
    "שלום",
    "שלומי",
    "maybe",
    "I think",
    "as far as\tI know",
    "e\u0301\u0301\u0301",
    "👩\u200d🚀",
    "\0",
    "a\0b",
    "a\0",
    "a",
    "\ud800",
    "\u00a0",
    "\u2028",
    "\x1c",
    "\x85",
    "x" * 20,
    "x" * 21,
    "ё" * 21,
    "y" * 65,
    "y" * 64 + "z",
    "3.14",
    "Really?!",
    "wait...",
    "ملف؟",
    "\u017ftraße",
    "STRASSE",
    "ﬁne",
    "_",
    "maybe_",
]
texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=30).flatmap(
        lambda parts: st.sampled_from([" ", "", "\n", "\r\n", "\r", "  "]).map(lambda between: between.join(parts))
    ),
    st.integers(0, 130).map(lambda count: " ".join(f"word{number % 50}" for number in range(count)) + "."),
)
episodes = st.builds(
    dict,
    prompt=texts,
    response=texts,
    keywords=st.none() | st.lists(st.sampled_from(KEYWORDS), max_size=3),
    target_length=st.none() | st.integers(1, 90),
    logprobs=st.none() | st.lists(st.floats(-20, 0), min_size=1, max_size=5),
    reference=st.none() | st.sampled_from(["42", "a cat sat", "Quantum"]),
)


def rewards_of(found: list[dict[str, Any]], *, compiled: bool) -> np.ndarray:
    records = []
    for episode in found:
        metadata = {name: episode[name] for name in ("keywords", "target_length") if episode[name] is not None}
        records.append(
            Episode(
                episode["prompt"],
                episode["response"],
                reference=episode["reference"],
                logprobs=episode["logprobs"],
                metadata=metadata,
            )
        )
    processor = RolloutRewardProcessor(RewardConfig(keywords=KEYWORDS[:3]), compiled=compiled)
    return np.array(processor.process_episode_rewards(records))


def expected_of(oracle: ModuleType, hedge_phrases: list[str], found: list[dict[str, Any]]) -> list[float]:
    from hookline.rewards.measurements import agreement

    return [
        oracle.reward(
            episode["prompt"],
            episode["response"],
            hedges=hedge_phrases,
            keywords=KEYWORDS[:3] if episode["keywords"] is None else episode["keywords"],
            target_length=episode["target_length"] or 50,
            logprobs=episode["logprobs"],
            agreement=None if episode["reference"] is None else agreement(episode["response"], episode["reference"]),
        )
        for episode in found
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(episodes, max_size=40))
def test_rewards_are_those_of_the_oracle(
    found: list[dict[str, Any]], oracle: ModuleType, hedge_phrases: list[str], compiled: bool
) -> None:
    rewards = rewards_of(found, compiled=compiled)
    assert rewards == pytest.approx(expected_of(oracle, hedge_phrases, found), abs=1e-6, nan_ok=True)


EXTREMES = {
    "empty": "",
    "white space": " \r\n\t\u2003 ",
    "one word": "quantum",
    "a megabyte of words": "quantum maybe word. " * 52_429,
    "a megabyte of one word": "x" * 1_048_576,
    "a megabyte of different words": " ".join(f"{number:06d}" for number in range(149_797)),
    "a megabyte of line ends": "\r\n" * 524_288,
    "a megabyte of emoji": "👩\u200d🚀" * 95_326,
    "NULs": "\0" * 100,
}


def test_extreme_texts_are_rewarded_as_the_oracle_does(
    oracle: ModuleType, hedge_phrases: list[str], compiled: bool
) -> None:
    bare = {"keywords": None, "target_length": None, "logprobs": None, "reference": None}
    found = [{"prompt": "quantum", "response": text, **bare} for text in EXTREMES.values()]
    rewards = rewards_of(found, compiled=compiled)
    assert rewards == pytest.approx(expected_of(oracle, hedge_phrases, found), abs=1e-6)


@given(found=st.lists(episodes, min_size=1, max_size=40))
def test_mlx_and_numpy_agree(found: list[dict[str, Any]]) -> None:
    pytest.importorskip("mlx.core")
    by_mlx, by_numpy = rewards_of(found, compiled=True), rewards_of(found, compiled=False)
    assert by_mlx == pytest.approx(by_numpy, abs=1e-6, nan_ok=True)
    assert all(math.isnan(reward) or 0.0 <= reward <= 1.0 for reward in by_mlx)
