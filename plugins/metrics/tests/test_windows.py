"""Reports that come faster than 50 a second are condensed: mean, extremes and count in each half second."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hookline_hookspecs.sinks import Report
from hookline_metrics.sinks import SAVED, windows
from hookline_metrics.sinks.windows import Condenser

START = 1_000_000.0


def condense(reports: Sequence[Report], at_once: float = 0.0) -> list[Report]:
    """By a condenser that has used up its allowance, but for so many reports."""
    condenser = Condenser()
    names = {tuple(report.numbers) for report in reports}
    condenser._allowance = dict.fromkeys(names, (at_once, START))
    return condenser.condense(reports)


def steps(count: int, seconds: float, name: str = "loss", first: int = 1) -> list[Report]:
    """So many reports of one metric, evenly spread over so many seconds from a whole second on."""
    return [Report(first + i, 0, {name: float(i)}, START + seconds * i / count) for i in range(count)]


def test_reports_that_come_slowly_stay_as_they_are() -> None:
    reports = steps(100, seconds=2.0)  # 50 a second
    assert condense(reports, at_once=25) == reports


def test_a_short_run_has_all_its_steps_however_fast_they_come() -> None:
    reports = steps(1000, seconds=0.4)
    condenser = Condenser()
    assert condenser.condense(reports) == reports
    (after,) = condenser.condense([own._replace(time=own.time + 0.5) for own in reports])
    assert after.window is not None
    assert after.window.count == 1000


def test_while_reports_come_too_fast_none_is_kept_in_full() -> None:
    condenser = Condenser()
    condenser.condense(steps(1000, seconds=0.4))
    for second in range(1, 60):
        found = condenser.condense([own._replace(time=own.time + second) for own in steps(600, seconds=1.0)])
        assert [report.window is not None for report in found] == [True, True]


def test_after_a_pause_many_may_come_at_once_again() -> None:
    condenser = Condenser()
    condenser.condense(steps(1000, seconds=0.4))
    later = [own._replace(time=own.time + 11) for own in steps(500, seconds=0.4)]
    assert condenser.condense(later) == later


def test_a_second_of_a_thousand_steps_becomes_two_reports_at_the_last_step_of_each_half() -> None:
    first, second = condense(steps(1000, seconds=1.0))
    assert (first.step, second.step) == (500, 1000)
    assert first.numbers == {"loss": statistics.mean(range(500))}
    assert first.window is not None
    assert (first.window.count, first.window.low, first.window.high) == (500, {"loss": 0.0}, {"loss": 499.0})


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
        assert len(after) <= 2 * windows.REPORTS_PER_SECOND + 5 * len("abc") * 7  # for each set of names and window
        total = sum(count * report.numbers[name] for count, report in zip(counts, after, strict=True))
        assert math.isclose(total, sum(before), rel_tol=1e-9, abs_tol=1e-3)
        if before:
            assert min(r.numbers[name] if r.window is None else r.window.low[name] for r in after) == min(before)
            assert max(r.numbers[name] if r.window is None else r.window.high[name] for r in after) == max(before)
