"""How the reports of several verifiers on a batch become one report for each episode.

- The score is the mean of the verifiers' scores by their weights.
- The result is the worst of the verifiers' results: one FAIL fails the episode, else one WARNING leaves a WARNING.
- A verifier that does not apply to an episode has no part in it. One of weight 0 is only shown in the details.
- Where no verifier has a part the score is NaN, which reaches no threshold, and the result is FAIL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from hookline.plugins.manager import PluginManager
from hookline.rewards.config import OnFailure
from hookline.rewards.errors import RewardError
from hookline.rewards.failures import collect_or_raise
from hookline.rewards.features import Column
from hookline.rewards.reports import FAIL, PASS, RESULTS, Codes, ReportColumn, as_column
from hookline_hookspecs import EpisodeBatch

__all__ = [
    "HOW_TO_GET_VERIFIERS",
    "CombinedReports",
    "VerifierColumn",
    "VerifierDetails",
    "combine_reports",
    "verify_batch",
]

HOW_TO_GET_VERIFIERS: Final = (
    "pip install hookline-verifiers, or install or register another plugin that implements verify_episodes"
)


@dataclass(frozen=True)
class VerifierColumn:
    """What one verifier says of a batch, and how much it counts."""

    reports: ReportColumn
    """With NaN for a score where the verifier does not apply."""
    weight: float


def verify_batch(manager: PluginManager, batch: EpisodeBatch, on_failure: OnFailure) -> dict[str, VerifierColumn]:
    """Emit `verify_episodes`, and check what comes back; raises where no plugin verifies."""
    columns: dict[str, VerifierColumn] = {}
    for plugin, result in collect_or_raise(manager, "verify_episodes", batch, on_failure):
        if not isinstance(result, Mapping):
            raise RewardError(
                f"plugin {plugin!r}: verify_episodes must return reports by the verifier's name, "
                f"got {type(result).__name__}"
            )
        for name, reports in result.items():
            # Two of a kind, such as two length verifiers with other bounds, go by their plugins' names.
            key = plugin if name in columns else name
            if key in columns:
                raise RewardError(f"plugin {plugin!r}: another verifier is called {name!r} too; give one another name")
            column = as_column(f"verifier {name!r} of plugin {plugin!r}", reports, len(batch))
            columns[key] = VerifierColumn(column, _weight(manager, plugin))
    if not columns:
        raise RewardError(f"there is no verifier: {HOW_TO_GET_VERIFIERS}")
    return columns


def _weight(manager: PluginManager, plugin: str) -> float:
    weight: object = getattr(manager.get_plugin(plugin), "weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.0 <= weight < math.inf:
        raise RewardError(f"plugin {plugin!r}: its weight must be a number of at least 0, got {weight!r}")
    return weight


def combine_reports(columns: Mapping[str, VerifierColumn]) -> CombinedReports:
    """One report for each episode, by the rule at the head of this module."""
    count = len(next(iter(columns.values())).reports)
    total, weight_applied = np.zeros(count), np.zeros(count)
    worst = np.full(count, PASS, np.int8)
    for column in columns.values():
        if not column.weight:
            continue
        scores = column.reports.scores
        applies = ~np.isnan(scores)
        total += np.where(applies, scores, 0.0) * column.weight
        weight_applied += applies * column.weight
        np.maximum(worst, column.reports.codes, out=worst, where=applies)
    combined = np.divide(total, weight_applied, out=np.full(count, np.nan), where=weight_applied > 0)
    worst[weight_applied == 0] = FAIL
    return CombinedReports(combined, worst, {name: column.reports for name, column in columns.items()})


class CombinedReports(ReportColumn):
    """One report for each episode, from those of all verifiers."""

    def __init__(self, scores: Column, codes: Codes, columns: Mapping[str, ReportColumn]) -> None:
        super().__init__(scores, codes, message=lambda index: self.messages[index], details=self.details_of)
        self.columns: Final = columns

    def details_of(self, index: int) -> VerifierDetails:
        """What each verifier found in one episode."""
        return VerifierDetails(self.columns, index)

    @cached_property
    def messages(self) -> list[str]:
        """The message of each report: what verifiers object to, or that they do not."""
        messages = [f"passed by {', '.join(self.columns)}"] * len(self)
        objections: dict[int, str] = {}
        for name, column in self.columns.items():
            applies = ~np.isnan(column.scores)
            for index in np.flatnonzero(applies & (column.codes != PASS)).tolist():
                objection = f"{name}: {column.message(index)}"
                objections[index] = f"{objections[index]}; {objection}" if index in objections else objection
            for index in np.flatnonzero(~applies).tolist():
                messages[index] = self._passed_by(index)
        for index, objection in objections.items():
            messages[index] = objection
        return messages

    def _passed_by(self, index: int) -> str:
        applying = [name for name, column in self.columns.items() if not math.isnan(column.scores[index])]
        return f"passed by {', '.join(applying)}" if applying else "no verifier applies"


class VerifierDetails(Mapping[str, Mapping[str, Any]]):
    """What each verifier found in one episode: result, score, message and details, by the verifier's name.

    Made of the batch's columns when it is looked at. A copy of it, and what is pickled, is a plain dictionary.
    """

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: Mapping[str, ReportColumn], index: int) -> None:
        self._columns = columns
        self._index = index

    def __getitem__(self, name: str) -> dict[str, Any]:
        column = self._columns[name]
        if math.isnan(column.scores[self._index]):
            return {"result": None, "score": None, "message": "does not apply", "details": {}}
        return {
            "result": RESULTS[column.codes[self._index]],
            "score": float(column.scores[self._index]),
            "message": column.message(self._index),
            "details": dict(column.details(self._index)),
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)
