"""The tokens of conversations, with chat templates and without: the policy's own are never encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("transformers")
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.policies.huggingface import HuggingFaceTokenizer
from hookline.policies.protocol import Tokenizer
from hookline.rollout import Lesson, SamplingConfig
from hookline.rollout.engines import Generated
from hookline.rollout.errors import LessonError
from hookline.rollout.runners.text_runner import TextRunner
from hookline.rollout.text import CharacterTokenizer, Limits, TextProblem
from hookline.testing.tiny_models import CHAT_TEMPLATE, tiny_tokenizer
from hookline_hookspecs import Episode, Turn

LINES = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""Ends each message with a line break, which the policy never samples."""

GROUPED = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}"
    "({{ message.content }}){% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>{% endif %}"
    "{% else %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Writes the results of tools that come together as one message, as Qwen's templates do."""

FORGETFUL = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{{ message.content.split('!')[-1] if message.role == 'assistant' else message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Leaves out what comes before a `!` in a response, as templates do with thoughts."""

STRICT = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

TEMPLATES = {"plain": CHAT_TEMPLATE, "lines": LINES, "grouped": GROUPED, "forgetful": FORGETFUL}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizers(folder: Path) -> dict[str, Tokenizer]:
    made: dict[str, Tokenizer] = {"characters": CharacterTokenizer()}
    for name, template in {"none": None, **TEMPLATES}.items():
        made[name] = HuggingFaceTokenizer(tiny_tokenizer(folder / name, chat_template=template))
    return made


Messages = list[Turn]


class Says:
    """Says its messages, whatever the policy responds."""

    def __init__(self, messages: Sequence[Messages]) -> None:
        self.messages = messages
        self.limits = Limits(max_turns=len(messages), max_new_tokens=12)

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        return TextProblem()

    def converse(self, problem: TextProblem) -> Any:
        for messages in self.messages:  # noqa: UP028 - a list takes no responses
            yield messages
        return 1.0


class Samples:
    """Gives responses that are known before."""

    context = 10_000
    version = 0

    def __init__(self, responses: Sequence[list[int]]) -> None:
        self.responses = iter(responses)
        self.read: list[list[int]] = []

    def generate(self, prompts: Any, sampling: Any, key: Any, *, max_new_tokens: int, stop: Any) -> Generated:
        (prompt,) = prompts
        self.read.append(list(prompt))
        response = next(self.responses)
        tokens = np.array([[*response, *[0] * (max_new_tokens - len(response))]], np.int32)
        return Generated(tokens, np.zeros(tokens.shape, np.float32), np.arange(max_new_tokens)[None] < len(response))


def play(tokenizer: Tokenizer, messages: Sequence[Messages], responses: Sequence[list[int]]) -> tuple[Episode, Samples]:
    engine = Samples(responses)
    runner = TextRunner(Lesson("says"), Says(messages), tokenizer, 1, SamplingConfig())
    (episode,) = runner.rollout(engine, jax.random.key(0), 0).episodes
    assert "failure" not in episode.metadata
    return episode, engine


TEXT = st.text(st.sampled_from("12+34= aeglnuv\n(){}[]<>!?"), min_size=1, max_size=8)
MESSAGE = st.builds(Turn, st.sampled_from(["user", "tool"]), TEXT)
CONVERSATION = st.lists(st.lists(MESSAGE, min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("name", ["characters", "none", *TEMPLATES])
def test_a_conversation_is_what_the_policy_read_and_sampled_token_by_token(
    name: str, tokenizers: dict[str, Tokenizer], data: st.DataObject
) -> None:
    tokenizer = tokenizers[name]
    messages = data.draw(CONVERSATION)
    ordinary = st.integers(4, tokenizer.size - 1)  # any tokens, also such that no text is encoded as
    ended = st.lists(ordinary, max_size=11).map(lambda tokens: [*tokens, tokenizer.end[0]])
    cut_off = st.lists(ordinary, min_size=12, max_size=12)
    responses = [data.draw(ended | cut_off) for _ in messages]
    episode, engine = play(tokenizer, messages, responses)
    tokens = episode.tokens.tolist()
    own = [turn for turn in episode.turns if turn.role == "assistant"]
    assert [tokens[turn.start : turn.end] for turn in own] == responses
    assert [tokenizer.decode(response) for response in responses] == [turn.text for turn in own]
    assert [tokens[: turn.start] for turn in own] == engine.read, "all that came before, unchanged"
    sampled = {place for turn in own for place in range(turn.start, turn.end)}
    assert episode.mask.tolist() == [place in sampled for place in range(len(tokens))]
    for turn in own[:-1]:  # each is ended once: by the policy, or after it
        end = turn.end - 1 if tokens[turn.end - 1] in tokenizer.end else turn.end
        assert tokens[end] in tokenizer.end
        assert tokens[end + 1] not in tokenizer.end


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("name", ["plain", "lines", "grouped"])
def test_with_a_template_it_is_what_the_template_writes_of_the_whole_conversation(
    name: str, tokenizers: dict[str, Any], data: st.DataObject
) -> None:
    tokenizer = tokenizers[name]
    messages = data.draw(CONVERSATION)
    texts = [data.draw(TEXT).strip() or "7" for _ in messages]
    responses = [[*tokenizer.encode(text)[:11], tokenizer.end[0]] for text in texts]
    episode, _ = play(tokenizer, messages, responses)
    chat = [{"role": turn.role, "content": turn.text} for turn in episode.turns]
    written = tokenizer.tokenizer.apply_chat_template(chat, return_dict=False)
    tokens = episode.tokens.tolist()
    assert written[: len(tokens)] == tokens
    assert tokenizer.tokenizer.decode(written[len(tokens) :]).strip() == "", "templates may end with a line break"


def test_a_template_that_would_write_a_response_in_another_way_is_not_let_to(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["forgetful"]
    messages = [[Turn("user", "1+1?")], [Turn("user", "2+2?")]]
    responses = [[*tokenizer.encode("e!2"), 1], [*tokenizer.encode("4"), 1]]
    episode, _ = play(tokenizer, messages, responses)
    text = tokenizer.tokenizer.decode(episode.tokens)
    assert text == "<|user|>1+1?<|end|><|assistant|>e!2<|end|><|user|>2+2?<|end|><|assistant|>4<|end|>"


def test_a_template_that_rejects_the_order_of_roles_is_an_error_that_names_them(folder: Path) -> None:
    tokenizer = HuggingFaceTokenizer(tiny_tokenizer(folder / "strict", chat_template=STRICT))
    response = [*tokenizer.encode("2"), 1]
    play(tokenizer, [[Turn("user", "1+1?")], [Turn("user", "2+2?")]], [response, response])
    message = r"rejects a conversation with the roles user, assistant, tool: roles must alternate\. Let the environment"
    with pytest.raises(LessonError, match=message):
        play(tokenizer, [[Turn("user", "1+1?")], [Turn("tool", "2")]], [response, response])


def test_a_template_that_leaves_out_responses_is_an_error(folder: Path) -> None:
    silent = "{% for m in messages if m.role != 'assistant' %}<|user|>{{ m.content }}<|end|>{% endfor %}"
    tokenizer = HuggingFaceTokenizer(tiny_tokenizer(folder / "silent", chat_template=silent))
    with pytest.raises(
        LessonError, match="leaves out the response in a conversation with the roles user, assistant, us"
    ):
        play(tokenizer, [[Turn("user", "1")], [Turn("user", "2")]], [[5, 1], [5, 1]])


def test_an_end_token_other_than_the_templates_own_does_not_take_its_place(folder: Path) -> None:
    other_end = 0
    tokenizer = HuggingFaceTokenizer(tiny_tokenizer(folder / "ends", chat_template=CHAT_TEMPLATE), [other_end])
    assert tokenizer.end == (1, other_end)
    episode, _ = play(tokenizer, [[Turn("user", "1")], [Turn("user", "2")]], [[9, other_end], [9, 1]])
    first = episode.turns[1]
    assert episode.tokens[first.end - 1 : first.end + 1].tolist() == [other_end, 1]
    assert episode.mask[first.end - 1 : first.end + 1].tolist() == [True, False]
