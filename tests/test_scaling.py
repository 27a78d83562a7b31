"""The simulation behind docs/scaling.md: the driver's own code, with workers and a clock that are simulated."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module("scaling")
    for name in ("scaling", "scaling_picture", "measuring"):
        sys.modules.pop(name, None)


def test_all_rollouts_arrive_in_time_though_workers_die(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "DEATHS_PER_HOUR", 100.0)  # one in ten rollouts, about
    found = scaling.simulate(workers=4, epochs=12)
    assert found["lost"] > 0
    assert 0 < found["staleness"] <= found["staleness_max"] <= scaling.MAX_STALENESS
    for share in ("trainer_idle", "worker_idle", "dropped"):
        assert 0 <= found[share] < 1
    # No worker makes more than it can, and the driver's own time passes on the clock.
    assert found["rollouts_per_second"] * scaling.LONG.rollout_seconds < 4
    assert found["driver_load"] > 0


def test_a_worker_begins_no_task_before_it_is_submitted(scaling: Any) -> None:
    pool = scaling.SimulatedPool(1, b"", scaling.LONG)
    pool.publish({}, 0)
    pool.start()
    pool.train(100.0)
    pool.submit("a task")  # the worker has been idle for 90 s
    assert isinstance(pool.wait(None), scaling.Ready)
    began = pool.wait(None)
    assert isinstance(began, scaling.Began)
    assert began.at > 100.0


def test_a_tree_brings_weights_to_many_nodes_sooner_than_one_link(scaling: Any) -> None:
    last = {}
    for tree in (False, True):
        network = scaling.Network(tree=tree)
        last[tree] = max(network.arrival(node, 1, 0.0) for node in range(127))
        assert network.arrival(0, 1, 1000.0) == 1000.0, "weights that are there are not sent again"
    assert last[False] == pytest.approx(127 * scaling.WEIGHTS_SECONDS)
    assert last[True] == pytest.approx(7 * scaling.WEIGHTS_SECONDS)


def test_the_picture_has_a_line_for_each_series_in_each_panel(scaling: Any) -> None:
    points = [{"workers": n, "trainer_idle": 0.1, "driver_load": n / 100, "staleness": 1.0} for n in (1, 10, 100)]
    picture = ElementTree.fromstring(scaling.draw({"one": points, "another": points}))
    lines = picture.findall(".//{*}polyline")
    assert len(lines) == 2 * 3
    load = [tuple(map(float, place.split(","))) for place in lines[2].attrib["points"].split()]
    assert load[0][1] > load[1][1] > load[2][1] == 0.0, "the top of the axis is a load of 1"
