import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline_metrics.report.charts import line_chart
from hookline_metrics.report.comparison import COLUMNS, differences, group_curve, group_runs
from hookline_metrics.run_reader import Series


def series(steps: list[int], values: list[float]) -> Series:
    return Series("loss", steps, values, [0.0] * len(steps))


def config(seed: int = 0, rate: float = 0.1, **others: object) -> dict[str, object]:
    trainer = {"seed": seed, "run_dir": f"runs/{seed}", "optimizer": {"rate": rate}}
    plugins = {"metrics": {"options": {"progress": others.pop("progress", "auto")}}, "evaluation": {"seed": seed}}
    return {"task": "sums", "trainer": trainer, "plugins": plugins, **others}


def test_runs_that_differ_in_their_seed_only_are_one_group() -> None:
    runs = {"a": config(0), "b": config(1, progress="off"), "c": config(0, rate=0.2), "d": {}, "e": {}}
    groups = group_runs(runs)
    assert [group.runs for group in groups] == [("a", "b"), ("c",), ("d",), ("e",)]
    assert differences(groups[:2]) == {"trainer.optimizer.rate": ["0.1", "0.2"]}
    assert differences(groups[:1]) == {}


runs_of_numbers = st.lists(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30).flatmap(
        lambda values: st.tuples(
            st.lists(st.integers(0, 60), min_size=len(values), max_size=len(values), unique=True).map(sorted),
            st.just(values),
        )
    ),
    min_size=2,
    max_size=5,
)


@given(runs_of_numbers)
def test_mean_and_std_agree_with_numpy(runs: list[tuple[list[int], list[float]]]) -> None:
    curve = group_curve("g", [series(*run) for run in runs])
    steps = sorted({step for own, _ in runs for step in own})
    assert [step for step, _ in curve.points] == steps
    for (step, mean), std in zip(curve.points, curve.spread, strict=True):
        values = [np.interp(step, *run) for run in runs if run[0][0] <= step <= run[0][-1]]
        assert mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
        assert std == pytest.approx(np.std(values, ddof=1) if len(values) > 1 else 0.0, rel=1e-6, abs=1e-6)


def test_long_runs_are_thinned_to_the_means_of_columns() -> None:
    rng = np.random.default_rng(0)
    runs = [series(list(range(10_000)), (rng.normal(0, 1, 10_000) + shift).tolist()) for shift in (-1, 1)]
    curve = group_curve("g", runs)
    assert len(curve.points) <= COLUMNS
    means = np.array([mean for _, mean in curve.points])
    assert abs(means.mean()) < 0.02
    assert np.abs(means).max() < 0.6  # 50 values of std 1 in each column of each run
    assert np.mean(curve.spread) == pytest.approx(np.std([-1, 1], ddof=1), abs=0.05)


def test_values_that_are_not_finite_are_left_out_and_a_run_without_any_does_not_count() -> None:
    curve = group_curve("g", [series([1, 2, 3], [1.0, math.nan, 3.0]), series([1, 3], [3.0, 5.0]), series([], [])])
    assert curve.points == [(1.0, 2.0), (3.0, 4.0)]
    assert curve.label == "g (mean of 2)"
    assert curve.spread == pytest.approx([math.sqrt(2)] * 2)


def test_one_run_is_its_own_curve_and_none_an_empty_one() -> None:
    assert group_curve("g", [series([1, 2], [5.0, 6.0])]).points == [(1.0, 5.0), (2.0, 6.0)]
    assert group_curve("g", [series([], [])]).points == []


def test_the_spread_is_a_band_within_the_chart_and_in_the_values_under_the_pointer() -> None:
    curve = group_curve("g", [series([0, 10], [0.0, 0.0]), series([0, 10], [10.0, 20.0])])
    drawn = ElementTree.fromstring(line_chart([curve]).partition("</svg>")[0] + "</svg>")
    [band] = [path for path in drawn.findall("path") if path.attrib["class"].startswith("band")]
    places = [tuple(map(float, place.split(","))) for place in band.attrib["d"].strip("MZ").split("L")]
    assert len(places) == 4
    assert all(0 <= y <= 214 for _, y in places)
    assert "5 ± 7.071" in drawn.attrib["data-curves"]
