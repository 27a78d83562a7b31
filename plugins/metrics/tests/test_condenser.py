"""Reports that come too fast are condensed: mean, extremes and count in each second."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hookline_hookspecs.sinks import Report
from hookline_metrics.sinks import SAVED
from hookline_metrics.sinks import condenser as condenser_module
from hookline_metrics.sinks.condenser import Condenser

START = 1_000_000.0


def condense(reports: Sequence[Report], allowance: float = 0.0) -> list[Report]:
    """By a condenser that has used up its allowance, but for so many numbers."""
    condenser = Condenser()
    condenser._allowance, condenser._as_of = allowance, START
    return condenser.condense(reports)


def steps(count: int, seconds: float, name: str = "loss", first: int = 1) -> list[Report]:
    """So many reports of one metric, evenly spread over so many seconds from a whole second on."""
    return [Report(first + i, 0, {name: float(i)}, START + seconds * i / count) for i in range(count)]


def later(seconds: float, reports: Sequence[Report]) -> list[Report]:
    return [report._replace(time=report.time + seconds) for report in reports]


def test_reports_that_come_slowly_stay_as_they_are() -> None:
    condenser = Condenser()
    condenser.condense(steps(int(condenser_module.AT_ONCE), seconds=0.4))
    for second in range(1, 60):
        reports = later(second, steps(int(condenser_module.NUMBERS_PER_SECOND), seconds=0.9))
        assert condenser.condense(reports) == reports


def test_a_short_run_has_all_its_steps_however_fast_they_come() -> None:
    reports = steps(int(condenser_module.AT_ONCE), seconds=0.4)
    condenser = Condenser()
    assert condenser.condense(reports) == reports
    (after,) = condenser.condense(later(0.5, reports))
    assert after.window is not None
    assert after.window.count == len(reports)


def test_while_reports_come_too_fast_none_is_kept_in_full() -> None:
    condenser = Condenser()
    condenser.condense(steps(30_000, seconds=0.4))
    for second in range(1, 60):
        (found,) = condenser.condense(later(second, steps(600, seconds=1.0)))
        assert found.window is not None


def test_after_a_pause_many_may_come_at_once_again() -> None:
    condenser = Condenser()
    condenser.condense(steps(30_000, seconds=0.4))
    reports = later(11, steps(1000, seconds=0.4))
    assert condenser.condense(reports) == reports


def test_a_second_of_a_thousand_steps_becomes_one_report_at_its_last_step() -> None:
    (found,) = condense(steps(1000, seconds=1.0))
    assert found.step == 1000
    assert found.numbers == {"loss": statistics.mean(range(1000))}
    assert found.window is not None
    assert (found.window.count, found.window.low, found.window.high) == (1000, {"loss": 0.0}, {"loss": 999.0})


def test_what_waited_while_a_sink_was_busy_is_one_report_for_each_second() -> None:
    found = condense(steps(4000, seconds=4.0))
    assert [report.step for report in found] == [1000, 2000, 3000, 4000]


def test_what_is_reported_seldom_is_kept_in_full_among_what_is_not() -> None:
    seldom = [Report(120, 3, {"eval/reward": 1.0}, START + 0.1), Report(300, 3, {"eval/score": 2.0}, START + 0.3)]
    found = condense(sorted([*steps(400, seconds=0.4), *seldom], key=lambda report: report.time))
    assert [report for report in found if report.window is None] == seldom
    assert len(found) == 3


def test_no_window_reaches_across_a_checkpoint() -> None:
    saved = Report(60, 0, {SAVED: 1.0}, START + 0.2)
    found = condense([*steps(60, 0.2), saved, *steps(60, 0.2, first=61)])
    assert [report.step for report in found] == [60, 60, 120]
    assert found[1] == saved


def test_a_value_that_is_not_a_number_is_seen_in_the_mean_and_not_in_the_extremes() -> None:
    reports = steps(40, seconds=0.3)
    reports[7] = reports[7]._replace(numbers={"loss": math.nan})
    (found,) = condense(reports)
    assert math.isnan(found.numbers["loss"])
    assert found.window is not None
    assert (found.window.low, found.window.high) == ({"loss": 0.0}, {"loss": 39.0})


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
values = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(names, values, st.floats(0, 2)), max_size=200))
def test_sums_counts_and_extremes_of_every_metric_are_kept(drawn: list[tuple[list[str], float, float]]) -> None:
    drawn.sort(key=lambda own: own[2])
    reports = [Report(i, 0, dict.fromkeys(own, value), START + at) for i, (own, value, at) in enumerate(drawn)]
    found = condense(reports)
    assert [report.step for report in found] == sorted({report.step for report in found})
    for name in "abc":
        before = [report.numbers[name] for report in reports if name in report.numbers]
        after = [report for report in found if name in report.numbers]
        counts = [1 if report.window is None else report.window.count for report in after]
        assert sum(counts) == len(before)
        sets_of_names, windows = 15, 2
        assert len(after) <= condenser_module.NUMBERS_PER_SECOND * windows
        assert len(after) <= sets_of_names * windows or all(report.window is None for report in found)
        total = sum(count * report.numbers[name] for count, report in zip(counts, after, strict=True))
        assert math.isclose(total, sum(before), rel_tol=1e-9, abs_tol=1e-3)
        if before:
            assert min(r.numbers[name] if r.window is None else r.window.low[name] for r in after) == min(before)
            assert max(r.numbers[name] if r.window is None else r.window.high[name] for r in after) == max(before)
