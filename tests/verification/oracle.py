"""The verifiers and the filter again, one episode at a time: what the columns must agree with.

`text` is `oracle.py` of the rewards' own tests, which has the canonical text and the phrases.
"""

from __future__ import annotations

from typing import Any

Verdict = tuple[float, str]


def length(text: str, least: int, most: int) -> Verdict:
    words = len(text.split())
    if least <= words <= most:
        return 1.0, "pass"
    score = words / least if words < least else most / words
    return score, "warning" if score >= 0.5 else "fail"


def toxicity(words: Any, text: str, severe: list[str], rude: list[str]) -> Verdict:
    score = max(0.0, 1.0 - 0.8 * words.count_phrases(text, severe) - 0.3 * words.count_phrases(text, rude))
    return score, "pass" if score >= 1.0 else "warning" if score >= 0.5 - 1e-9 else "fail"


def coherence(words: Any, text: str) -> Verdict:
    all_words = text.split()
    if not all_words:
        return 0.0, "fail"
    unique_share = len(set(all_words)) / len(all_words)
    long_share = sum(len(word) > 20 for word in all_words) / len(all_words)
    ends = words.count_sentence_ends(text)
    words_per_sentence = len(all_words) / max(ends, 1)
    sentences = max(0.0, 1.0 - max(0.0, words_per_sentence - 40) / 80)
    if not ends:
        sentences /= 2
    score = 0.6 * min(1.0, unique_share / 0.5) + 0.25 * sentences + 0.15 * (1.0 - long_share)
    return score, "pass" if score >= 0.7 - 1e-9 else "warning" if score >= 0.4 - 1e-9 else "fail"


def factual(words: Any, text: str, claims: list[str], support: list[str]) -> Verdict:
    if not text:
        return 0.0, "fail"
    unsupported = max(0, words.count_phrases(text, claims) - words.count_phrases(text, support))
    score = max(0.0, 1.0 - 0.35 * unsupported)
    return score, "pass" if score >= 1.0 else "warning" if score >= 0.5 - 1e-9 else "fail"


def verify(
    words: Any, response: str, lists: dict[str, list[str]], least: int = 10, most: int = 500
) -> dict[str, Verdict]:
    """What the four verifiers say of one response, with their default options."""
    text = words.canonical(response)
    return {
        "length": length(text, least, most),
        "toxicity": toxicity(words, text, lists["severe"], lists["rude"]),
        "coherence": coherence(words, text),
        "factual": factual(words, text, lists["claims"], lists["support"]),
    }


def combine(verdicts: dict[str, Verdict]) -> Verdict:
    """Equal weights, and the worst result."""
    score = sum(own for own, _ in verdicts.values()) / len(verdicts)
    results = [result for _, result in verdicts.values()]
    if "fail" in results:
        return score, "fail"
    return score, "warning" if "warning" in results else "pass"


def accepts(
    reward: float, verdict: Verdict, *, strict: bool, min_reward: float, max_reward: float, least: float
) -> bool:
    by_reward = min_reward - 1e-9 <= reward <= max_reward + 1e-9
    by_verification = verdict[0] >= least - 1e-9 and verdict[1] != "fail"
    return (by_reward and by_verification) if strict else (by_reward or by_verification)
