"""Verdicts on a batch as columns. A report for one episode is made when somebody looks at it.

`verify_episodes` may return a plain list of reports or a `ReportColumn`; the latter is what makes verifying thousands
of episodes cost little more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
from hookline_hookspecs import VerificationReport, VerificationResult

from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column

__all__ = ["FAIL", "PASS", "RESULTS", "WARNING", "Codes", "ReportColumn"]

RESULTS: Final = (VerificationResult.PASS, VerificationResult.WARNING, VerificationResult.FAIL)
PASS, WARNING, FAIL = range(3)
"""The places of the results in `RESULTS`, by which columns have them."""

Codes = npt.NDArray[np.int8]

Describe = Callable[[int], tuple[str, Mapping[str, Any]]]
"""From an episode's number to the message and the details of its report."""


class ReportColumn(Sequence[VerificationReport]):
    """The reports of one verifier on a batch.

    :param scores: in 0..1, one for each episode.
    :param codes: the results, as their places in `RESULTS`.
    :param describe: gives the message and the details of one episode's report.
    """

    def __init__(self, scores: Column, codes: Codes, describe: Describe) -> None:
        self.scores: Final = scores
        self.codes: Final = codes
        self.describe: Final = describe

    @classmethod
    def graded(cls, scores: Column, describe: Describe, *, pass_from: float, warn_from: float) -> ReportColumn:
        """Results by score: PASS from one bound on, WARNING from another, FAIL below."""
        codes = np.where(scores >= pass_from, PASS, np.where(scores >= warn_from, WARNING, FAIL)).astype(np.int8)
        return cls(scores, codes, describe)

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
        message, details = self.describe(place)
        return VerificationReport(RESULTS[self.codes[place]], float(self.scores[place]), details, message)

    def __iter__(self) -> Iterator[VerificationReport]:
        return (self[index] for index in range(len(self)))


def as_columns(who: str, reports: Any, count: int) -> tuple[Column, Codes, Callable[[int], VerificationReport]]:
    """Scores (NaN where a verifier does not apply), results and reports, checked; `who` is named in what is raised."""
    if not isinstance(reports, Sequence):
        raise RewardError(f"{who} must give one report for each episode, got {type(reports).__name__}")
    if len(reports) != count:
        raise RewardError(f"{who} gave {len(reports)} reports for {count} episodes")
    if isinstance(reports, ReportColumn):
        wrong = np.flatnonzero(~((reports.scores >= 0) & (reports.scores <= 1)))
        if len(wrong):
            raise RewardError(f"{who}, episode {wrong[0]}: {_score_problem(float(reports.scores[wrong[0]]))}")
        return reports.scores, reports.codes, reports.__getitem__
    for index, report in enumerate(reports):
        problem = None if report is None else _report_problem(report)
        if problem:
            raise RewardError(f"{who}, episode {index}: {problem}")
    scores = np.array([math.nan if report is None else report.score for report in reports], np.float64)
    codes = np.array([PASS if report is None else RESULTS.index(report.result) for report in reports], np.int8)
    return scores, codes, reports.__getitem__


def _report_problem(report: Any) -> str | None:
    if not isinstance(report, VerificationReport):
        return f"must be a VerificationReport, or None where the verifier does not apply, got {type(report).__name__}"
    if not isinstance(report.result, VerificationResult):
        return f"the result must be a VerificationResult, got {report.result!r}"
    if isinstance(report.score, (int, float)) and 0.0 <= report.score <= 1.0:
        return None
    return _score_problem(report.score)


def _score_problem(score: Any) -> str:
    return f"the score must be a number in 0..1, got {score!r}"
