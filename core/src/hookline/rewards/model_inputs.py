"""What a model reads of an episode, as tokens, and what a library that runs the model must offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hookline.importing import require
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline_hookspecs import Episode
from hookline_hookspecs.errors import describe_error

__all__ = ["ConversationTokenizer", "ModelInput", "ModelScorer", "Row", "check_head", "conversation_of"]

RolesAndTexts = tuple[tuple[str, str], ...]
"""Role and text of each message."""


class ModelInput(NamedTuple):
    """An episode as a model reads it."""

    messages: RolesAndTexts
    """What precedes the response."""
    response: str


class Row(NamedTuple):
    """The tokens of a conversation."""

    tokens: Sequence[int]
    start: int = 0
    """The first token that is scored."""

    def last(self, padding: int | None) -> int:
        """The token whose hidden state a reward model reads: the last that is not padding, as in transformers.

        Where a model pads with its end token, that is the token before the end.
        """
        return next((place for place in reversed(range(len(self.tokens))) if self.tokens[place] != padding), 0)


class ModelScorer(Protocol):
    """A model that is loaded, and scores rows: by the mean log-probability of their tokens, or by its one logit."""

    config: Mapping[str, Any]
    """The contents of its `config.json`."""

    def run(self, rows: Sequence[Row], widest: int) -> Column:
        """One score for each row, in order.

        :param widest: the longest sequence that the model takes. No row is longer.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the last digits of the next scores depend on, besides the rows."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def check_head(weights: Mapping[str, Any]) -> None:
    """Raise an error unless the weights have the head of a sequence classifier with one label."""
    score = weights.get("score.weight")
    if score is None:
        raise RewardError("it has no score.weight, as a sequence classifier of transformers has")
    if len(score) != 1:
        raise RewardError(f"it has {len(score)} labels, and a reward model has one")


def conversation_of(episode: Episode) -> ModelInput:
    """The response is that of the policy's last turn. An episode without turns has its prompt as the only message."""
    responses = [index for index, turn in enumerate(episode.turns) if turn.role == "assistant"]
    if responses:
        return ModelInput(tuple((turn.role, turn.text) for turn in episode.turns[: responses[-1]]), episode.response)
    return ModelInput((("user", episode.prompt),) if episode.prompt else (), episode.response)


class ConversationTokenizer:
    """The tokenizer of a model's folder, with its chat template if it has one."""

    def __init__(self, folder: Path) -> None:
        if not any(folder.glob("tokenizer*")):
            # transformers would return a tokenizer without any tokens.
            raise RewardError("the folder has no tokenizer: save it there, with tokenizer.save_pretrained(folder)")
        transformers = require("transformers", "a model's tokenizer")
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def after_messages(self, conversations: Sequence[ModelInput]) -> list[Row | RewardError]:
        """Each response as a policy writes it: its tokens follow those of the messages, and are made apart from them.

        Without a chat template, the messages are one text. The tokens of the response are scored, each given those
        before it, so the very first token of a row is not.
        """
        messages = {own: self._encode_messages(own) for own in dict.fromkeys(own.messages for own in conversations)}
        responses = self._encode([conversation.response for conversation in conversations])
        return [
            before if isinstance(before, RewardError) else Row([*before, *response], max(1, len(before)))
            for before, response in zip((messages[own.messages] for own in conversations), responses, strict=True)
        ]

    def whole(self, conversations: Sequence[ModelInput]) -> list[Row | RewardError]:
        """Each conversation as one text by the chat template. Without one, an end token follows the response."""
        if not self._tokenizer.chat_template:
            end = [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
            rows = self.after_messages(conversations)
            return [row if isinstance(row, RewardError) else Row([*row.tokens, *end]) for row in rows]
        texts = [self._render((*own.messages, ("assistant", own.response))) for own in conversations]
        tokens = iter(self._encode([text for text in texts if isinstance(text, str)]))
        return [text if isinstance(text, RewardError) else Row(next(tokens)) for text in texts]

    def _encode_messages(self, messages: RolesAndTexts) -> list[int] | RewardError:
        if messages and self._tokenizer.chat_template:
            text = self._render(messages, add_generation_prompt=True)
            return text if isinstance(text, RewardError) else self._encode([text])[0]
        tokens: list[int] = self._tokenizer.encode("".join(text for _, text in messages))
        # Some tokenizers end every text.
        return tokens[:-1] if tokens and tokens[-1] == self._tokenizer.eos_token_id else tokens

    def _render(self, messages: RolesAndTexts, **options: Any) -> str | RewardError:
        chat = [{"role": role, "content": text} for role, text in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(chat, tokenize=False, **options)
        except Exception as error:  # a template may refuse roles, or raise whatever it likes
            return RewardError(f"the chat template refuses the messages: {describe_error(error)}")
        return text

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        tokens: list[list[int]] = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tokens
