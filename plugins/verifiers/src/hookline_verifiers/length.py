"""Checks the length of a response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from hookline_hookspecs import EpisodeBatch, hookimpl
from hookline_verifiers.column_verifier import Bounds, ColumnVerifier, VerifierOptions

if TYPE_CHECKING:
    from hookline.rewards import Column, FeatureTable, ReportColumn

__all__ = ["LengthVerifier", "Options"]


@dataclass(frozen=True, kw_only=True)
class Options(VerifierOptions):
    """Bounds in words, both inclusive."""

    min_length: Annotated[int, Bounds(ge=0)] = 10
    """The fewest words of a response."""
    max_length: Annotated[int, Bounds(ge=1)] = 500
    """The most words of a response."""

    def __post_init__(self) -> None:
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")


class LengthVerifier(ColumnVerifier):
    """Verifies the length of a response.

    PASS within the bounds, WARNING down to half the minimum and up to twice the maximum, else FAIL.

    An episode whose metadata has a `target_length` below the minimum may be as short as that.
    """

    name = "length"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._min = options.min_length
        self._max = options.max_length

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Mapping[str, ReportColumn]:
        from hookline.rewards import FeatureTable

        return {self.name: self._judge(FeatureTable.of(batch, [self]), self._minimums(batch))}

    def judge(self, features: FeatureTable) -> ReportColumn:
        import numpy as np

        return self._judge(features, np.full(len(features), float(self._min)))

    def _minimums(self, batch: EpisodeBatch) -> Column:
        import numpy as np

        minimum = np.full(len(batch), float(self._min))
        for index, episode in enumerate(batch.episodes):
            if episode.metadata and "target_length" in episode.metadata:
                minimum[index] = min(minimum[index], episode.metadata["target_length"])
        return minimum

    def _judge(self, features: FeatureTable, minimum: Column) -> ReportColumn:
        import numpy as np

        from hookline.rewards import ReportColumn, result_codes

        words = features.words
        from_below = words / np.maximum(minimum, 1.0)
        from_above = self._max / np.maximum(words, 1.0)
        within = (words >= minimum) & (words <= self._max)
        scores = np.where(within, 1.0, np.minimum(np.minimum(from_below, from_above), 1.0))

        def message(index: int) -> str:
            count = int(words[index])
            found = f"{count} word{'' if count == 1 else 's'}"
            if count < minimum[index]:
                return f"{found}, fewer than {minimum[index]:g}"
            return f"{found}, more than {self._max}" if count > self._max else found

        def details(index: int) -> Mapping[str, Any]:
            return {"words": int(words[index]), "min_length": int(minimum[index]), "max_length": self._max}

        codes = result_codes(scores, pass_from=1.0, warn_from=0.5)
        return ReportColumn(scores, codes, message=message, details=details)
