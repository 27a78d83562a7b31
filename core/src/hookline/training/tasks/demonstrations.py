"""Problems with their answers, as examples to learn from."""

from __future__ import annotations

from collections.abc import Iterable

from hookline.rollout.text import CharacterTokenizer, TextProblem

__all__ = ["demonstrations"]


def demonstrations(
    problems: Iterable[TextProblem], tokenizer: CharacterTokenizer
) -> list[dict[str, list[int] | list[bool]]]:
    """One example for each problem: the answer is to be learnt, its end included; the prompt is given."""
    examples: list[dict[str, list[int] | list[bool]]] = []
    for problem in problems:
        before, after = tokenizer.encode(problem.prompt), [*tokenizer.encode(problem.answer), tokenizer.end]
        examples.append({"tokens": before + after, "loss_mask": [False] * len(before) + [True] * len(after)})
    return examples
