"""Verdicts on a batch as columns. The report of one episode is made when it is read.

`verify_episodes` may return a plain list of reports or a `ReportColumn`; the latter is what makes verifying thousands
of episodes cost little more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from hookline.rewards.errors import RewardError, shown
from hookline.rewards.features import Column
from hookline_hookspecs import VerificationReport, VerificationResult

__all__ = ["FAIL", "PASS", "RESULTS", "ROUNDING", "WARNING", "Codes", "ReportColumn", "as_column", "grades"]

RESULTS: Final = (VerificationResult.PASS, VerificationResult.WARNING, VerificationResult.FAIL)
PASS, WARNING, FAIL = range(3)
"""The places of the results in `RESULTS`, by which columns have them: the worse, the greater."""

ROUNDING: Final = 1e-9
"""Bounds are inclusive: a mean that is equal to one but for its last bits has reached it."""

Codes = npt.NDArray[np.int8]


class ReportColumn(Sequence[VerificationReport]):
    """The reports of one verifier on a batch.

    :param scores: in 0..1, one for each episode.
    :param codes: the results, as their places in `RESULTS`.
    :param message: gives the message of an episode's report, by the episode's number.
    :param details: gives the details of an episode's report.
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


def grades(scores: Column, *, pass_from: float, warn_from: float) -> Codes:
    """The results that go with scores."""
    codes = np.full(len(scores), FAIL, np.int8)
    codes[scores >= warn_from - ROUNDING] = WARNING
    codes[scores >= pass_from - ROUNDING] = PASS
    return codes


def as_column(who: str, reports: Any, count: int) -> ReportColumn:
    """A verifier's reports as a column, checked; its score is NaN where there is None for a report.

    :param who: named in what is raised.
    """
    if not isinstance(reports, Sequence):
        raise RewardError(f"{who} must give one report for each episode, got {type(reports).__name__}")
    if len(reports) != count:
        raise RewardError(f"{who} gave {len(reports)} reports for {count} episodes")
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
    return f"the score must be a number in 0..1, got {shown(score)}"
