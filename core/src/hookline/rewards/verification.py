"""How the reports of several verifiers on a batch become one report for each episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hookline_hookspecs import EpisodeBatch, VerificationReport

from hookline.plugins.manager import PluginManager
from hookline.rewards.config import OnFailure
from hookline.rewards.errors import RewardError
from hookline.rewards.failures import collect_or_raise
from hookline.rewards.features import Column
from hookline.rewards.reports import FAIL, PASS, WARNING, Codes, ReportColumn, as_columns

__all__ = [
    "HOW_TO_GET_VERIFIERS",
    "CombinedReports",
    "VerifierColumn",
    "VerifierDetails",
    "combine_reports",
    "verify_batch",
]

PASS_FROM: Final = 0.7
WARN_FROM: Final = 0.4

HOW_TO_GET_VERIFIERS: Final = (
    "pip install hookline-verifiers, or install or register another plugin that implements verify_episodes"
)


@dataclass(frozen=True)
class VerifierColumn:
    """What one verifier says of a batch, and how much it counts."""

    scores: Column
    """NaN where the verifier does not apply."""
    codes: Codes
    report: Callable[[int], VerificationReport]
    weight: float
    veto: bool


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
            scores, codes, report = as_columns(f"verifier {name!r} of plugin {plugin!r}", reports, len(batch))
            columns[key] = VerifierColumn(scores, codes, report, *_standing(manager, plugin))
    if not columns:
        raise RewardError(f"there is no verifier: {HOW_TO_GET_VERIFIERS}")
    return columns


def _standing(manager: PluginManager, plugin: str) -> tuple[float, bool]:
    """How much a plugin's verdict counts: its `weight` and its `veto`."""
    verifier = manager.get_plugin(plugin)
    weight = getattr(verifier, "weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.0 <= weight < math.inf:
        raise RewardError(f"plugin {plugin!r}: its weight must be a number of at least 0, got {weight!r}")
    return weight, bool(getattr(verifier, "veto", False))


def combine_reports(columns: Mapping[str, VerifierColumn]) -> CombinedReports:
    """The weighted mean of the scores that apply, and the result that goes with it.

    PASS from a score of 0.7 on, WARNING from 0.4, else FAIL. A verifier's FAIL leaves a WARNING at best, and the FAIL
    of one with a veto fails the whole. Where no verifier applies the score is NaN, which reaches no threshold.
    """
    count = len(next(iter(columns.values())).scores)
    total, weight_applied = np.zeros(count), np.zeros(count)
    failed, vetoed = np.zeros(count, bool), np.zeros(count, bool)
    for column in columns.values():
        applies = ~np.isnan(column.scores)
        total += np.where(applies, column.scores, 0.0) * column.weight
        weight_applied += applies * column.weight
        failed |= column.codes == FAIL
        if column.veto:
            vetoed |= column.codes == FAIL
    scores = np.divide(total, weight_applied, out=np.full(count, np.nan), where=weight_applied > 0)
    codes = np.where(scores >= PASS_FROM, PASS, np.where(scores >= WARN_FROM, WARNING, FAIL)).astype(np.int8)
    codes[failed & (codes == PASS)] = WARNING
    codes[vetoed] = FAIL
    return CombinedReports(scores, codes, columns)


class CombinedReports(ReportColumn):
    """One report for each episode, from those of all verifiers."""

    def __init__(self, scores: Column, codes: Codes, columns: Mapping[str, VerifierColumn]) -> None:
        super().__init__(scores, codes, lambda index: (self.message(index), VerifierDetails(columns, index)))
        self.columns: Final = columns

    def messages(self) -> list[str]:
        """The message of each report."""
        messages = [f"passed by all of {', '.join(self.columns)}"] * len(self)
        unanimous = np.ones(len(self), bool)
        for column in self.columns.values():
            unanimous &= (column.codes == PASS) & ~np.isnan(column.scores)
        for index in np.flatnonzero(~unanimous).tolist():
            messages[index] = self.message(index)
        return messages

    def message(self, index: int) -> str:
        """What verifiers object to in one episode, or that they do not."""
        objections = [
            f"{name}: {column.report(index).message}"
            for name, column in self.columns.items()
            if column.codes[index] != PASS
        ]
        if objections:
            return "; ".join(objections)
        applying = [name for name, column in self.columns.items() if not math.isnan(column.scores[index])]
        if not applying:
            return "no verifier applies"
        return f"passed by {'all of ' if len(applying) == len(self.columns) else ''}{', '.join(applying)}"


class VerifierDetails(Mapping[str, Mapping[str, Any]]):
    """What each verifier found in one episode: result, score, message and details, by the verifier's name.

    Made of the batch's columns when it is looked at. A copy of it, and what is pickled, is a plain dictionary.
    """

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: Mapping[str, VerifierColumn], index: int) -> None:
        self._columns = columns
        self._index = index

    def __getitem__(self, name: str) -> dict[str, Any]:
        column = self._columns[name]
        if math.isnan(column.scores[self._index]):
            return {"result": None, "score": None, "message": "does not apply", "details": {}}
        report = column.report(self._index)
        return {
            "result": report.result,
            "score": report.score,
            "message": report.message,
            "details": dict(report.details),
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)
