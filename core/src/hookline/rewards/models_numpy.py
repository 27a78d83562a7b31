"""Scores rows of tokens with models of the Llama family in NumPy, in float32 on the CPU.

It takes the place of MLX where MLX has no GPU: there, its matrix products and exponentials take many times as long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hookline.importing import require
from hookline.policies.llama import LlamaPolicy, UnsupportedArchitecture
from hookline.policies.llama_numpy import hidden_states
from hookline.policies.weights import check_weights
from hookline.rewards.config import RewardConfig
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline.rewards.model_inputs import Row, check_head

__all__ = ["Perplexity", "RewardLogit", "supports"]

TOKENS_AT_ONCE: Final = 512
"""Rows are read together up to so many tokens, whose numbers fit into the caches of a CPU."""
LOGITS_AT_ONCE: Final = 2**20
"""The output layer is applied to as many tokens as make this many logits."""

FLOATS: Final = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
"""NumPy's types by those of safetensors. It has none for bfloat16."""


def supports(folder: Path) -> bool:
    """Whether the folder holds a model of the Llama family, whose weights are not quantized."""
    try:
        _policy(_read_config(folder))
    except (UnsupportedArchitecture, OSError, ValueError):
        return False
    return True


class NumpyScorer(ABC):
    """Reads rows in the given order, as many at once as have `TOKENS_AT_ONCE` tokens. Nothing is padded."""

    def __init__(self, folder: Path, config: RewardConfig) -> None:
        del config  # rows that are read together take little memory, and have no influence on each other
        self.config: Mapping[str, Any] = _read_config(folder)
        self._policy = _policy(self.config)
        weights = {name: array for file in _files(folder) for name, array in _read(file)}
        shapes = self._shapes(self._policy.shapes(), weights)
        check_weights({name: own for name, own in weights.items() if name in shapes}, shapes)
        self._weights = {name: weights[name] for name in shapes}

    @abstractmethod
    def _shapes(
        self, shapes: dict[str, tuple[int, ...]], weights: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights that are needed, given those of a language model."""

    @abstractmethod
    def _score(self, hidden: np.ndarray, rows: Sequence[Row], starts: np.ndarray) -> Column:
        """One score for each row.

        :param hidden: what the output layer reads, for all tokens of the rows, one row behind the other.
        :param starts: the places where the rows begin.
        """

    def run(self, rows: Sequence[Row], widest: int) -> Column:
        del widest
        scores = np.empty(len(rows))
        for part in _parts(rows):
            own = rows[part]
            lengths = np.array([len(row.tokens) for row in own])
            hidden = hidden_states(self._policy, self._weights, [row.tokens for row in own])
            scores[part] = self._score(hidden, own, np.cumsum(lengths) - lengths)
        return scores

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the rows alone decide which are read together."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


class Perplexity(NumpyScorer):
    """The mean log-probability of the tokens of each row that are scored."""

    def _shapes(
        self, shapes: dict[str, tuple[int, ...]], weights: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[int, ...]]:
        del weights
        return shapes

    def _score(self, hidden: np.ndarray, rows: Sequence[Row], starts: np.ndarray) -> Column:
        head = self._weights["model.embed_tokens.weight" if self._policy.tied else "lm_head.weight"]
        scored = [np.arange(row.start, len(row.tokens)) for row in rows]
        before = np.concatenate([start + own - 1 for start, own in zip(starts, scored, strict=True)])
        targets = np.concatenate([np.asarray(row.tokens)[own] for row, own in zip(rows, scored, strict=True)])
        logprobs = np.empty(len(targets))
        at_once = max(1, LOGITS_AT_ONCE // len(head))
        for first in range(0, len(targets), at_once):
            part = slice(first, first + at_once)
            logits = hidden[before[part]] @ head.T
            logits -= logits.max(axis=-1, keepdims=True)
            chosen = np.take_along_axis(logits, targets[part, None], axis=-1)[:, 0]
            logprobs[part] = chosen - np.log(np.exp(logits, out=logits).sum(axis=-1))
        counts = np.array(list(map(len, scored)))
        means: Column = np.add.reduceat(logprobs, np.cumsum(counts) - counts) / counts
        return means


class RewardLogit(NumpyScorer):
    """The logit of a sequence classifier with one label."""

    def _shapes(
        self, shapes: dict[str, tuple[int, ...]], weights: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[int, ...]]:
        check_head(weights)
        shapes.pop("lm_head.weight", None)
        return {**shapes, "score.weight": (1, self._policy.width)}

    def _score(self, hidden: np.ndarray, rows: Sequence[Row], starts: np.ndarray) -> Column:
        last = starts + [row.last(self.config.get("pad_token_id")) for row in rows]
        logits: Column = (hidden[last] @ self._weights["score.weight"][0]).astype(np.float64)
        return logits


def _parts(rows: Sequence[Row]) -> Iterator[slice]:
    first, tokens = 0, 0
    for place, row in enumerate(rows):
        if place > first and tokens + len(row.tokens) > TOKENS_AT_ONCE:
            yield slice(first, place)
            first, tokens = place, 0
        tokens += len(row.tokens)
    if rows:
        yield slice(first, len(rows))


def _read_config(folder: Path) -> dict[str, Any]:
    """The contents of `config.json`, and the family's defaults for what it leaves out."""
    config: dict[str, Any] = (
        require("transformers", "a model's config").AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    )
    return config


def _policy(config: Mapping[str, Any]) -> LlamaPolicy:
    if "quantization" in config:  # as mlx-lm writes it
        raise UnsupportedArchitecture("its weights are quantized")
    return LlamaPolicy.from_config(config)


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise RewardError(f"No safetensors found in {folder}")
    return files


def _read(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The weights of a file by name, in float32."""
    for name, own in require("safetensors", "a model's weights").deserialize(file.read_bytes()):
        if own["dtype"] == "BF16":  # the upper half of a float32
            array = (np.frombuffer(own["data"], "<u2").astype("<u4") << 16).view("<f4")
        elif own["dtype"] in FLOATS:
            array = np.frombuffer(own["data"], FLOATS[own["dtype"]]).astype("<f4")
        else:
            continue  # no weight of such a model
        yield name, array.reshape(own["shape"])
