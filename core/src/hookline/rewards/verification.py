"""Verifiers' reports as columns, and their combination into one report for each episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.errors import OnFailure, RewardError, collect_or_raise
from hookline.rewards.features import Column
from hookline_hookspecs import EpisodeBatch, VerificationReport, VerificationResult
from hookline_hookspecs.errors import shortened

__all__ = [
    "FAIL",
    "HOW_TO_GET_VERIFIERS",
    "PASS",
    "RESULTS",
    "ROUNDING",
    "WARNING",
    "Codes",
    "CombinedReports",
    "ReportColumn",
    "VerifierColumn",
    "VerifierDetails",
    "as_column",
    "combine_reports",
    "result_codes",
    "verify_batch",
]

RESULTS: Final = (VerificationResult.PASS, VerificationResult.WARNING, VerificationResult.FAIL)
PASS, WARNING, FAIL = range(3)
"""Codes of the results: their indices in `RESULTS`. A worse result has a greater code."""

ROUNDING: Final = 1e-9
"""Tolerance of thresholds, which are inclusive: rounding must not push a mean below one."""

HOW_TO_GET_VERIFIERS: Final = (
    "pip install hookline-verifiers, or install or register another plugin that implements verify_episodes"
)

Codes = npt.NDArray[np.int8]


class ReportColumn(Sequence[VerificationReport]):
    """The reports of one verifier on a batch.

    :param scores: one per episode, in 0..1.
    :param codes: the results, as indices of `RESULTS`.
    :param message: a function from an episode's index to the message of its report.
    :param details: a function from an episode's index to the details of its report.
    """

    def __init__(
        self,
        scores: Column,
        codes: Codes,
        *,
        message: Callable[[int], str],
        details: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self.scores: Final = scores
        self.codes: Final = codes
        self.message: Final = message
        self.details: Final = details

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> VerificationReport: ...
    @overload
    def __getitem__(self, index: slice) -> list[VerificationReport]: ...

    def __getitem__(self, index: int | slice) -> VerificationReport | list[VerificationReport]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        result = RESULTS[self.codes[place]]
        return VerificationReport(result, float(self.scores[place]), self.details(place), self.message(place))

    def __iter__(self) -> Iterator[VerificationReport]:
        return (self[index] for index in range(len(self)))


def result_codes(scores: Column, *, pass_from: float, warn_from: float) -> Codes:
    """PASS from one threshold on, WARNING from a lower one, FAIL below it."""
    codes = np.full(len(scores), FAIL, np.int8)
    codes[scores >= warn_from - ROUNDING] = WARNING
    codes[scores >= pass_from - ROUNDING] = PASS
    return codes


def as_column(who: str, reports: Any, count: int) -> ReportColumn:
    """Validate a verifier's reports and convert them to a column. A report of None gets the score NaN.

    :param who: the verifier, for error messages.
    """
    if not isinstance(reports, Sequence):
        raise RewardError(f"{who} must return one report for each episode, got {type(reports).__name__}")
    if len(reports) != count:
        raise RewardError(f"{who} returned {len(reports)} reports for {count} episodes")
    if isinstance(reports, ReportColumn):
        wrong = np.flatnonzero(~((reports.scores >= 0) & (reports.scores <= 1)))
        if len(wrong):
            raise RewardError(f"{who}, episode {wrong[0]}: {_score_problem(float(reports.scores[wrong[0]]))}")
        return reports
    for index, report in enumerate(reports):
        problem = None if report is None else _report_problem(report)
        if problem:
            raise RewardError(f"{who}, episode {index}: {problem}")
    scores = np.array([math.nan if report is None else report.score for report in reports], np.float64)
    codes = np.array([PASS if report is None else RESULTS.index(report.result) for report in reports], np.int8)
    return ReportColumn(
        scores, codes, message=lambda index: reports[index].message, details=lambda index: reports[index].details
    )


def _report_problem(report: Any) -> str | None:
    if not isinstance(report, VerificationReport):
        return f"must be a VerificationReport, or None where the verifier does not apply, got {type(report).__name__}"
    if not isinstance(report.result, VerificationResult):
        return f"the result must be a VerificationResult, got {report.result!r}"
    if isinstance(report.score, (int, float)) and 0.0 <= report.score <= 1.0:
        return None
    return _score_problem(report.score)


def _score_problem(score: Any) -> str:
    return f"the score must be a number in 0..1, got {shortened(score)}"


@dataclass(frozen=True)
class VerifierColumn:
    """The reports of one verifier on a batch, and its weight in the combined score."""

    reports: ReportColumn
    """The score is NaN where the verifier does not apply."""
    weight: float


def verify_batch(manager: PluginManager, batch: EpisodeBatch, on_failure: OnFailure) -> dict[str, VerifierColumn]:
    """Emit `verify_episodes` and validate the reports. Raises if there is no verifier."""
    columns: dict[str, VerifierColumn] = {}
    for plugin, result in collect_or_raise(manager, "verify_episodes", batch, on_failure):
        for name, reports in result.items():
            # Two verifiers of one name, such as two length verifiers, are told apart by the name of their plugin.
            key = plugin if name in columns else name
            if key in columns:
                raise RewardError(f"plugin {plugin!r}: another verifier is also called {name!r}; rename one of them")
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
    """One report for each episode.

    Its score is the weighted mean over the verifiers that apply, its result the worst of theirs. Verifiers of weight 0
    are shown in the details only. If none applies, the result is FAIL and the score NaN.
    """
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
    """The combined reports of all verifiers."""

    def __init__(self, scores: Column, codes: Codes, columns: Mapping[str, ReportColumn]) -> None:
        super().__init__(scores, codes, message=lambda index: self.messages[index], details=self.details_of)
        self.columns: Final = columns

    def details_of(self, index: int) -> VerifierDetails:
        """The report of each verifier on one episode."""
        return VerifierDetails(self.columns, index)

    @cached_property
    def messages(self) -> list[str]:
        """The message of each report: what verifiers object to, or which verifiers passed it."""
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
    """Result, score, message and details of each verifier for one episode, by the verifier's name.

    A lazy view of the batch's columns. Copying or pickling it gives a plain dictionary.
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
