"""Run a model over rows of tokens of different lengths, in padded batches that fit into MLX's memory limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import mlx.core as mx
import numpy as np

from hookline.rewards.config import RewardConfig
from hookline.rewards.conversations import Row
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column

__all__ = ["Forward", "PaddedBatches"]

logger = logging.getLogger("hookline.rewards")

WIDTH_STEP: Final = 16
"""Widths are multiples of this. MLX compiles a function again for each shape."""
FULL: Final = 0.75
"""The least share of a batch that is no padding, besides the rounding of its width."""

Forward = Callable[[mx.array, Sequence[Row]], Column]
"""Maps tokens, (rows, width) and padded on the right with 0, and the rows themselves to one score for each row.

There may be more rows of tokens, which are padding too. All models here are causal, so no score depends on padding.
"""


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
