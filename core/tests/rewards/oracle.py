"""The rewards again, one episode at a time and as plainly as can be: what the columns must agree with."""

from __future__ import annotations

import math
import re
import unicodedata

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
OTHER_SENTENCE_ENDS = "\u2026\u3002\uff01\uff1f\uff61\u061f\u06d4\u0964\u0965"


def canonical(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text.casefold()).split())


def joins_words(character: str) -> bool:
    if unicodedata.category(character)[0] == "M":
        return True
    return (character.isalnum() or character == "_") and not UNSPACED.match(character)


def count_phrase(text: str, phrase: str) -> int:
    """How often a phrase occurs as whole words in a text, both canonical."""
    count, place = 0, text.find(phrase)
    while place >= 0:
        end = place + len(phrase)
        joined_before = place > 0 and joins_words(text[place - 1]) and joins_words(phrase[0])
        joined_after = end < len(text) and joins_words(text[end]) and joins_words(phrase[-1])
        count += not joined_before and not joined_after
        place = text.find(phrase, place + 1)
    return count


def count_phrases(text: str, phrases: list[str]) -> int:
    return sum(count_phrase(text, phrase) for phrase in phrases if phrase in text)


def count_sentence_ends(text: str) -> int:
    ascii_ends = len(re.findall(r"[.!?](?![a-z0-9_.!?])", text))
    return ascii_ends + sum(text.count(mark) for mark in OTHER_SENTENCE_ENDS)


def length_reward(text: str, target: float) -> float:
    words = text.split()
    if not words:
        return 0.0
    off = abs(len(words) - target) / target
    return 1.0 if off <= 0.2 else max(0.0, 1.0 - (off - 0.2) / 0.8)


def keyword_reward(prompt: str, text: str, keywords: list[str]) -> float | None:
    wanted = {canonical(keyword) for keyword in keywords}
    if not wanted:
        return None
    found = [keyword for keyword in wanted if count_phrase(text, keyword)]
    new = [keyword for keyword in found if not count_phrase(prompt, keyword)]
    return min(1.0, (len(found) + 0.5 * len(new)) / len(wanted))


def perplexity_reward(text: str, logprobs: list[float] | None) -> float:
    words = text.split()
    if not words:
        return 0.0
    if logprobs:
        return math.exp(min(0.0, sum(logprobs) / len(logprobs)))
    unique_share = len(set(words)) / len(words)
    long_share = sum(len(word) > 20 for word in words) / len(words)
    return unique_share * (1.0 - long_share) * (1.0 if count_sentence_ends(text) else 0.7)


def accuracy_reward(text: str, hedges: list[str], agreement: float | None) -> float:
    if not text:
        return 0.0
    if agreement is not None:
        return agreement
    return max(0.3, 1.0 - 0.15 * count_phrases(text, hedges))


def reward(
    prompt: str,
    response: str,
    *,
    hedges: list[str],
    keywords: list[str],
    target_length: float = 50,
    logprobs: list[float] | None = None,
    agreement: float | None = None,
    weights: tuple[float, float, float, float] = (0.1, 0.2, 0.3, 0.4),
) -> float:
    """The combined reward of one episode; NaN where nothing applies."""
    prompt, text = canonical(prompt), canonical(response)
    scores = (
        length_reward(text, target_length),
        keyword_reward(prompt, text, keywords),
        perplexity_reward(text, logprobs),
        accuracy_reward(text, hedges, agreement),
    )
    applying = [(score, weight) for score, weight in zip(scores, weights, strict=True) if score is not None]
    total = sum(weight for _, weight in applying)
    return sum(score * weight for score, weight in applying) / total if total else math.nan
