"""What a model reads of an episode, as tokens, and the padded batches in which it reads them.

Batches fit into MLX's memory limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np

from hookline.importing import require
from hookline.rewards.config import RewardConfig
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline_hookspecs import Episode
from hookline_hookspecs.errors import describe_error

__all__ = ["Conversation", "ConversationTokenizer", "Forward", "PaddedBatches", "Row", "conversation_of"]


logger = logging.getLogger("hookline.rewards")

WIDTH_STEP: Final = 16
"""Widths are multiples of this. MLX compiles a function again for each shape."""
FULL: Final = 0.75
"""The least share of a batch that is no padding, besides the rounding of its width."""

Messages = tuple[tuple[str, str], ...]
"""Role and text of each message."""


class Conversation(NamedTuple):
    """An episode as a model reads it."""

    messages: Messages
    """What precedes the response."""
    response: str


class Row(NamedTuple):
    """The tokens of a conversation."""

    tokens: Sequence[int]
    start: int = 0
    """The first token that is scored."""


Forward = Callable[[mx.array, Sequence[Row]], Column]
"""Maps tokens, (rows, width) and padded on the right with 0, and the rows themselves to one score for each row.

There may be more rows of tokens, which are padding too. All models here are causal, so no score depends on padding.
"""


def conversation_of(episode: Episode) -> Conversation:
    """The response is that of the policy's last turn. An episode without turns has its prompt as the only message."""
    responses = [index for index, turn in enumerate(episode.turns) if turn.role == "assistant"]
    if responses:
        return Conversation(tuple((turn.role, turn.text) for turn in episode.turns[: responses[-1]]), episode.response)
    return Conversation((("user", episode.prompt),) if episode.prompt else (), episode.response)


class ConversationTokenizer:
    """The tokenizer of a model's folder, with its chat template if it has one."""

    def __init__(self, folder: Path) -> None:
        if not any(folder.glob("tokenizer*")):
            # transformers would return a tokenizer without any tokens.
            raise RewardError("the folder has no tokenizer: save it there, with tokenizer.save_pretrained(folder)")
        transformers = require("transformers", "a model's tokenizer")
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def after_messages(self, conversations: Sequence[Conversation]) -> list[Row | RewardError]:
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

    def whole(self, conversations: Sequence[Conversation]) -> list[Row | RewardError]:
        """Each conversation as one text by the chat template. Without one, an end token follows the response."""
        if not self._tokenizer.chat_template:
            end = [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
            rows = self.after_messages(conversations)
            return [row if isinstance(row, RewardError) else Row([*row.tokens, *end]) for row in rows]
        texts = [self._render((*own.messages, ("assistant", own.response))) for own in conversations]
        tokens = iter(self._encode([text for text in texts if isinstance(text, str)]))
        return [text if isinstance(text, RewardError) else Row(next(tokens)) for text in texts]

    def _encode_messages(self, messages: Messages) -> list[int] | RewardError:
        if messages and self._tokenizer.chat_template:
            text = self._render(messages, add_generation_prompt=True)
            return text if isinstance(text, RewardError) else self._encode([text])[0]
        tokens: list[int] = self._tokenizer.encode("".join(text for _, text in messages))
        # Some tokenizers end every text.
        return tokens[:-1] if tokens and tokens[-1] == self._tokenizer.eos_token_id else tokens

    def _render(self, messages: Messages, **options: Any) -> str | RewardError:
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


class PaddedBatches:
    """Batches of rows of similar length, shortest first: `batch_size` rows, or a power of two below it.

    MLX takes its memory limit as a guideline, and on a CPU it crashes where there is no more memory. So a batch is made
    smaller if it would exceed the limit, by the memory that the batch before it took. The first batch is one row.
    """

    def __init__(self, config: RewardConfig) -> None:
        if config.mlx_device == "gpu" and not mx.is_available(mx.gpu):
            raise RewardError("RewardConfig.mlx_device is 'gpu', but this MLX has none; use 'cpu'")
        self._device = {"gpu": mx.gpu, "cpu": mx.cpu, None: None}[config.mlx_device]
        self._limit = mx.get_memory_limit() if config.mlx_memory_limit is None else config.mlx_memory_limit
        powers = (1 << power for power in reversed(range(config.batch_size.bit_length())))
        self._counts = list(dict.fromkeys([config.batch_size, *powers]))
        self._row_bytes: float | None = None
        """The memory that one row of the latest batch took, besides the weights."""
        self._row_width = 1

    def run(self, rows: Sequence[Row], forward: Forward, widest: int) -> Column:
        """The scores of all rows, in order.

        :param widest: the longest sequence that the model takes.
        """
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].tokens))
        lengths = [len(rows[index].tokens) for index in order]
        scores = np.full(len(rows), np.nan)
        first, previous_limit = 0, mx.set_memory_limit(self._limit)
        try:
            with nullcontext() if self._device is None else mx.stream(self._device):
                while first < len(order):
                    count = self._choose_count(lengths[first : first + self._counts[0]])
                    batch = order[first : first + count]
                    width = min(_rounded(lengths[first + len(batch) - 1]), widest)
                    scores[batch] = self._run_batch([rows[index] for index in batch], count, width, forward)
                    first += len(batch)
        finally:
            mx.set_memory_limit(previous_limit)
        return scores

    def state_dict(self) -> dict[str, Any]:
        """What the size of the next batch depends on."""
        return {"row_bytes": self._row_bytes, "row_width": self._row_width}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._row_bytes, self._row_width = state["row_bytes"], state["row_width"]

    def _choose_count(self, lengths: Sequence[int]) -> int:
        """The number of rows in a batch of the next rows, which have these lengths. The last ones may be padding."""
        for count in self._counts:
            own = lengths[:count]
            if sum(own) >= FULL * count * own[-1] and count <= self._rows_within_limit(_rounded(own[-1])):
                return count
        return 1

    def _run_batch(self, rows: Sequence[Row], count: int, width: int, forward: Forward) -> Column:
        tokens = np.zeros((count, width), np.int32)
        for own, row in zip(tokens, rows, strict=False):
            own[: len(row.tokens)] = row.tokens
        active = mx.get_active_memory()
        mx.reset_peak_memory()
        scores = forward(mx.array(tokens), rows)
        peak = mx.get_peak_memory()
        self._row_bytes, self._row_width = max(1, peak - active) / count, width
        logger.debug("scored %d episodes of up to %d tokens, with %.1f MB", len(rows), width, (peak - active) / 1e6)
        if peak > self._limit and len(rows) == 1:
            logger.warning(
                "an episode of %d tokens took %.0f MB, above the memory limit of %.0f MB, and cannot be split",
                len(rows[0].tokens),
                peak / 1e6,
                self._limit / 1e6,
            )
        return scores

    def _rows_within_limit(self, width: int) -> float:
        if self._row_bytes is None:
            return 1
        # Memory has parts that are linear and quadratic in the width. This is above both.
        ratio = width / self._row_width
        needed = self._row_bytes * (ratio * ratio if ratio > 1 else ratio)
        return (self._limit - mx.get_active_memory()) / needed


def _rounded(length: int) -> int:
    return -(-length // WIDTH_STEP) * WIDTH_STEP
