"""Whether a response is neither too short nor too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from hookline.rewards import Column, FeatureTable, ReportColumn, result_codes
from hookline_hookspecs import EpisodeBatch, hookimpl
from hookline_verifiers.column_verifier import ColumnVerifier, VerifierOptions

__all__ = ["LengthVerifier", "Options"]


class Options(VerifierOptions):
    """Bounds in words, both inclusive."""

    min_length: Annotated[int, Field(ge=0)] = 10
    max_length: Annotated[int, Field(ge=1)] = 500

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Options:
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self


class LengthVerifier(ColumnVerifier):
    """PASS within the bounds; a WARNING down to half of the minimum and up to twice the maximum; else FAIL.

    An episode whose metadata has a `target_length` below the minimum may be as short as that.
    """

    name = "length"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._least = options.min_length
        self._most = options.max_length

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Mapping[str, ReportColumn]:
        return {self.name: self._judge(FeatureTable.of(batch, [self]), self._least_of_each(batch))}

    def judge(self, features: FeatureTable) -> ReportColumn:
        return self._judge(features, np.full(len(features), float(self._least)))

    def _least_of_each(self, batch: EpisodeBatch) -> Column:
        least = np.full(len(batch), float(self._least))
        for index, episode in enumerate(batch.episodes):
            if episode.metadata and "target_length" in episode.metadata:
                least[index] = min(least[index], episode.metadata["target_length"])
        return least

    def _judge(self, features: FeatureTable, least: Column) -> ReportColumn:
        words = features.words
        from_below = words / np.maximum(least, 1.0)
        from_above = self._most / np.maximum(words, 1.0)
        within = (words >= least) & (words <= self._most)
        scores = np.where(within, 1.0, np.minimum(np.minimum(from_below, from_above), 1.0))

        def message(index: int) -> str:
            count = int(words[index])
            found = f"{count} word{'' if count == 1 else 's'}"
            if count < least[index]:
                return f"{found}, fewer than {least[index]:g}"
            return f"{found}, more than {self._most}" if count > self._most else found

        def details(index: int) -> Mapping[str, Any]:
            return {"words": int(words[index]), "min_length": int(least[index]), "max_length": self._most}

        codes = result_codes(scores, pass_from=1.0, warn_from=0.5)
        return ReportColumn(scores, codes, message=message, details=details)
