"""JSONL files of examples and problems."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookline.policies.huggingface import HuggingFaceTokenizer
from hookline.rollout.text import CharacterTokenizer, TextProblem
from hookline.testing.tiny_models import tiny_tokenizer
from hookline.training.errors import DatasetError
from hookline.training.text_examples import read_examples, read_problems, split

CHARACTERS = CharacterTokenizer("0123456789+=")
END = CHARACTERS.end[0]


class ChatTokenizer(CharacterTokenizer):
    """Writes chats as `u:`/`a:` lines with an end character, with the methods that transformers' tokenizers have."""

    end = (2,)  # the first character of the alphabet

    @property
    def tokenizer(self) -> Any:
        return SimpleNamespace(chat_template="...", apply_chat_template=self.render, encode=self.encode)

    def render(self, messages: list[Any], *, tokenize: bool, add_generation_prompt: bool = False) -> str:
        assert not tokenize
        text = "".join(f"{own['role'][0]}:{own['content']};\n" for own in messages)
        return text + ("a:" if add_generation_prompt else "")


CHAT = ChatTokenizer(";\nua:" + "0123456789+=")


class ForgetfulTokenizer(ChatTokenizer):
    """Leaves out the content of all but the last message, as templates do with earlier thoughts."""

    def render(self, messages: list[Any], *, tokenize: bool, add_generation_prompt: bool = False) -> str:
        short = [{**own, "content": ""} for own in messages[:-1]] + messages[-1:]
        return super().render(short, tokenize=tokenize, add_generation_prompt=add_generation_prompt)


def write(folder: Path, *rows: Any) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("\n\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return file


def test_the_loss_of_a_completion_is_on_it_and_its_end(tmp_path: Path) -> None:
    (example,) = read_examples(write(tmp_path, {"prompt": "2+3=", "completion": "5"}), CHARACTERS)
    assert example == {
        "tokens": [*CHARACTERS.encode("2+3=5"), END],
        "loss_mask": [False, False, False, False, True, True],
    }


def test_the_loss_of_a_text_is_on_all_tokens(tmp_path: Path) -> None:
    (example,) = read_examples(write(tmp_path, {"text": "1+1=2"}), CHARACTERS)
    assert example == {"tokens": [*CHARACTERS.encode("1+1=2"), END], "loss_mask": [True] * 6}


def test_the_loss_of_a_chat_is_on_the_assistants_messages_up_to_their_ends(tmp_path: Path) -> None:
    turns = [("user", "1+1"), ("assistant", "2"), ("user", "2+2"), ("assistant", "4")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (example,) = read_examples(write(tmp_path, {"messages": messages}), CHAT)
    alphabet = CHAT.alphabet
    text = "".join(alphabet[token - 2] for token in example["tokens"])
    assert text == "u:1+1;\na:2;\nu:2+2;\na:4;\n"
    trained = [alphabet[t - 2] for t, used in zip(example["tokens"], example["loss_mask"], strict=True) if used]
    assert trained == ["2", ";", "4", ";"]


def test_without_a_chat_template_a_chat_has_the_tokens_of_a_rollout(tmp_path: Path) -> None:
    turns = [("system", "1"), ("user", "+1="), ("assistant", "2"), ("tool", "3"), ("assistant", "4"), ("user", "5")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (example,) = read_examples(write(tmp_path, {"messages": messages}), CHARACTERS)
    encode = CHARACTERS.encode
    assert example == {
        "tokens": [*encode("1+1=2"), END, *encode("34"), END],
        "loss_mask": [False] * 4 + [True, True, False, True, True],
    }


def test_a_template_that_rewrites_earlier_messages_is_an_error(tmp_path: Path) -> None:
    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]
    messages = [{"role": role, "content": content} for role, content in turns]
    with pytest.raises(DatasetError, match="line 1: the chat template writes earlier messages in another way"):
        read_examples(write(tmp_path, {"messages": messages}), ForgetfulTokenizer(CHAT.alphabet))


def test_long_examples_are_cut_and_dropped_if_nothing_is_left_to_train(tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": "2+3=", "completion": "555"}, {"prompt": "22+33=", "completion": "55"})
    (example,) = read_examples(file, CHARACTERS, max_length=6)
    assert example["tokens"] == CHARACTERS.encode("2+3=55")
    with pytest.raises(DatasetError, match="has no examples within 3 tokens"):
        read_examples(file, CHARACTERS, max_length=3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("5", "line 1 is not a JSON object, but '5'"),
        ({"prompt": "1"}, "line 1 has no 'completion'; it has prompt: 'completion' must be a string"),
        ({"prompt": 1, "completion": "2"}, "line 1 has prompt = 1: 'prompt' must be a string"),
        ({"question": "1"}, "line 1 has question: it needs prompt and completion, messages, or text"),
        ({"messages": "hi"}, "line 1: messages must be a list"),
        ({"messages": [{"role": "user", "content": "1"}]}, "line 1 has no token to train on"),
        ({"messages": [{"role": "user"}]}, "line 1 has no 'content'; it has role: 'content' must be a string"),
        ('{"text": "1\\ud83d"}', r"line 1 has \\ud83d, half of a surrogate pair, which is no character: remove it"),
    ],
)
def test_a_row_that_is_no_example_is_an_error_with_file_and_line(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        read_examples(write(tmp_path, row), CHARACTERS)


def test_a_row_that_the_models_tokenizer_rejects_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    strict = "{{ raise_exception('there is no system role') }}"
    own_tokenizer = tiny_tokenizer(tmp_path)
    tokenizer = HuggingFaceTokenizer(own_tokenizer)
    with pytest.raises(DatasetError, match=r"rows.jsonl, line 1: the prompt '' has no tokens"):
        read_examples(write(tmp_path, {"prompt": "", "completion": "2"}), tokenizer)
    own_tokenizer.chat_template = strict
    messages = [{"role": "system", "content": "1"}, {"role": "assistant", "content": "2"}]
    rejected = "line 1: the chat template rejects messages with the roles system, assistant: there is no system role"
    with pytest.raises(DatasetError, match=rejected):
        read_examples(write(tmp_path, {"messages": messages}), tokenizer)


def test_a_file_may_begin_with_a_byte_order_mark_and_have_any_character_in_its_strings(tmp_path: Path) -> None:
    rows = [{"prompt": "a\u2028b\x85c", "answer": "\U0001f389"}, {"prompt": "\x0c", "answer": "b"}]
    file = tmp_path / "rows.jsonl"
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    file.write_bytes(text.encode("utf-8-sig"))
    assert read_problems(file) == [TextProblem(row["prompt"], row["answer"], {}) for row in rows]
    file.write_text(json.dumps(rows[0]))  # the emoji as two halves
    assert read_problems(file)[0].answer == "\U0001f389"


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none.jsonl cannot be read: No such file"):
        read_examples(tmp_path / "none.jsonl", CHARACTERS)
    with pytest.raises(DatasetError, match=r"rows.jsonl has no problems"):
        read_problems(write(tmp_path, ""))


def test_the_other_keys_of_a_problem_are_its_metadata(tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": "a", "answer": "b", "level": 3})
    assert read_problems(file) == [TextProblem("a", "b", {"level": 3})]


def test_a_text_is_held_out_in_every_run_or_in_none() -> None:
    texts = [f"{a}+{b}=" for a in range(40) for b in range(40)]
    kept, held_out = split([*texts, *texts], 0.2, str)
    assert set(kept) | set(held_out) == set(texts)
    assert not set(kept) & set(held_out)
    assert 0.15 < len(held_out) / (2 * len(texts)) < 0.25
