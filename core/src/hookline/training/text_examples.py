"""Examples and problems as JSONL: one JSON object in each line.

An example for supervised training has one of these forms:

- `{"prompt": "2+3=", "completion": "5"}`: the loss is on the completion and the end token after it.
- `{"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]}`: written by the model's
  chat template, or without one as in a rollout. The loss is on the assistant's messages, each with the token that ends
  it.
- `{"text": "..."}`: the loss is on all tokens, and on an end token.

A problem for rollouts is `{"prompt": "2+3=", "answer": "5"}`. Its other keys are the problem's metadata, for checkers.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from hookline.policies.protocol import PolicyError, Tokenizer
from hookline.rollout.text import TextProblem
from hookline.training.errors import DatasetError
from hookline_hookspecs import Turn

__all__ = ["Example", "conversation", "demonstrations", "read_examples", "read_problems", "split"]

Example = dict[str, list[int] | list[bool]]
"""`tokens` and `loss_mask`."""

T = TypeVar("T")

SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""The start of a character that JSON writes as two halves."""

logger = logging.getLogger("hookline.training")


def demonstrations(problems: Iterable[TextProblem], tokenizer: Tokenizer) -> list[Example]:
    """One example per problem. The loss mask covers the answer and the end token, not the prompt."""
    return [
        conversation([Turn("user", problem.prompt), Turn("assistant", problem.answer)], tokenizer)
        for problem in problems
    ]


def conversation(turns: Sequence[Turn], tokenizer: Tokenizer) -> Example:
    """An example of a conversation, with the tokens of a rollout in which the policy responds like this.

    The loss mask covers the assistant's turns, each with its end token.
    """
    tokens: list[int] = []
    loss_mask: list[bool] = []
    said = 0
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            read = tokenizer.encode_messages(turns[said:index], turns[:said]) if index > said else []
            read = read[1:] if said and read[:1] == tokens[-1:] else read  # the end token, which is the policy's own
            response = [*tokenizer.encode(turn.text), tokenizer.end[0]]
            tokens += [*read, *response]
            loss_mask += [False] * len(read) + [True] * len(response)
            said = index + 1
    return {"tokens": tokens, "loss_mask": loss_mask}


def read_examples(file: Path, tokenizer: Tokenizer, max_length: int | None = None) -> list[Example]:
    """The examples of a JSONL file.

    :param max_length: cut longer examples to this many tokens. Those without a trained token left are dropped.
    """
    examples = []
    for where, row in _rows(file):
        try:
            example = _example(row, tokenizer, where)
        except PolicyError as error:
            raise DatasetError(f"{where}: {error}") from error
        example = {name: column[:max_length] for name, column in example.items()}
        if any(example["loss_mask"][1:]):  # the first token is given, so it is never trained
            examples.append(example)
        elif max_length is None:
            raise DatasetError(f"{where} has no token to train on")
    if not examples:
        raise DatasetError(f"{file} has no examples" + ("" if max_length is None else f" within {max_length} tokens"))
    return examples


def read_problems(file: Path) -> list[TextProblem]:
    """The problems of a JSONL file."""
    problems = []
    for where, row in _rows(file):
        prompt, answer = (_text(row, name, where) for name in ("prompt", "answer"))
        problems.append(TextProblem(prompt, answer, {key: row[key] for key in row if key not in ("prompt", "answer")}))
    if not problems:
        raise DatasetError(f"{file} has no problems")
    return problems


def split(items: Sequence[T], share: float, text: Callable[[T], str]) -> tuple[list[T], list[T]]:
    """Items for training, and about this share held out. A text decides by its hash, so that it is never in both."""
    kept: list[T] = []
    held_out: list[T] = []
    for item in items:
        (held_out if zlib.crc32(text(item).encode()) < share * 2**32 else kept).append(item)
    return kept, held_out


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        # A line ends at a line feed alone: a JSON string may have other characters at which `splitlines` splits.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DatasetError(f"{where} is not JSON: {error}") from error
            if not isinstance(row, Mapping):
                raise DatasetError(f"{where} is not a JSON object, but {line.strip()[:80]!r}")
            if SURROGATE.search(line):
                _check_characters(row, where)
            yield where, row


def _check_characters(row: Mapping[str, Any], where: str) -> None:
    """Raise for half of a surrogate pair, which no tokenizer takes."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise DatasetError(f"{where} has {half}, half of a surrogate pair, which is no character: remove it") from error


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        problem = f"has no {name!r}; it has {', '.join(row)}" if name not in row else f"has {name} = {value!r}"
        raise DatasetError(f"{where} {problem}: {name!r} must be a string")
    return value


def _example(row: Mapping[str, Any], tokenizer: Tokenizer, where: str) -> Example:
    if "messages" in row:
        return _chat(row["messages"], tokenizer, where)
    if "text" in row:
        tokens = _encode_document(_text(row, "text", where), tokenizer)
        return {"tokens": tokens, "loss_mask": [True] * len(tokens)}
    if "prompt" in row:
        prompt, completion = (_text(row, name, where) for name in ("prompt", "completion"))
        return conversation([Turn("user", prompt), Turn("assistant", completion)], tokenizer)
    raise DatasetError(f"{where} has {', '.join(row) or 'no keys'}: it needs prompt and completion, messages, or text")


def _encode_document(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text with the model's start token, if it has one, and an end token."""
    model_tokenizer = getattr(tokenizer, "tokenizer", None)
    tokens = tokenizer.encode(text) if model_tokenizer is None else model_tokenizer.encode(text)
    return [*tokens, *(() if tokens and tokens[-1] in tokenizer.end else tokenizer.end[:1])]


def _chat(messages: Any, tokenizer: Tokenizer, where: str) -> Example:
    """A chat by the model's template. Each part is encoded by itself, as in a rollout, where a response follows it."""
    if not isinstance(messages, list) or not all(isinstance(own, Mapping) and "role" in own for own in messages):
        raise DatasetError(f'{where}: messages must be a list of {{"role": ..., "content": ...}}')
    template: Any = getattr(tokenizer, "tokenizer", None)
    if not getattr(template, "chat_template", None):
        return conversation([Turn(own["role"], _text(own, "content", where)) for own in messages], tokenizer)

    def written(part: Sequence[Any], **options: Any) -> str:
        try:
            text: str = template.apply_chat_template(part, tokenize=False, **options)
        except Exception as error:  # of the template's own, or of Jinja
            roles = ", ".join(str(own["role"]) for own in messages)
            raise DatasetError(
                f"{where}: the chat template rejects messages with the roles {roles or '(none)'}: {error}"
            ) from error
        return text

    whole = written(messages)
    all_tokens: list[int] = []
    loss_mask: list[bool] = []
    position = 0

    def add_up_to(text: str, *, trained: bool) -> None:
        nonlocal position
        if not whole.startswith(text):
            raise DatasetError(
                f"{where}: the chat template writes earlier messages in another way once there are later ones, so "
                "the assistant's tokens cannot be found: make an example of each of its messages"
            )
        tokens = tokenizer.encode(text[position:])
        # After the end token, templates often write a newline, which is never sampled.
        end = max((index + 1 for index, token in enumerate(tokens) if token in tokenizer.end), default=len(tokens))
        all_tokens.extend(tokens)
        loss_mask.extend(trained and index < end for index in range(len(tokens)))
        position = len(text)

    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            add_up_to(written(messages[:index], add_generation_prompt=True), trained=False)
            add_up_to(written(messages[: index + 1]), trained=True)
    add_up_to(whole, trained=False)
    return {"tokens": all_tokens, "loss_mask": loss_mask}
