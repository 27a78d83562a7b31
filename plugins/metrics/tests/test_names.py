import math
from collections.abc import Callable
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState, hookimpl

Run = Callable[..., TrainerState]
Read = Callable[..., list[tuple[Any, ...]]]

BAD_NAMES: tuple[Any, ...] = ("train/\udcff", "train/\0loss", "x" * 251, "", 7, None)


def report(manager: PluginManager, state: TrainerState, *reports: tuple[Any, dict[Any, Any]]) -> None:
    manager.emit.on_new_training_run(state=state)
    manager.emit.pre_training(state=state, report_data={})
    for step, numbers in reports:
        manager.emit.log_metrics(report_data=numbers, step=step)
    manager.emit.on_training_complete(state=state)
    manager.drain()


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_that_is_no_text_costs_its_own_number_alone_and_the_code_that_gave_it_is_named(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture, name: Any
) -> None:
    report(manager, hookline_state(), (1, {"loss": 1.0}), (2, {"loss": 2.0, name: 9.0}), (3, {"loss": 3.0}))
    assert read("SELECT step, value FROM metrics WHERE name = 'loss' ORDER BY step") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert read("SELECT count(*) FROM metrics WHERE value = 9.0") == [(0,)]
    [told] = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert f"{__file__}:" in told
    assert "(report)" in told
    assert "its name " in told


def test_a_plugin_that_gives_a_bad_name_is_named_once_and_keeps_its_good_ones(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    class Careless:
        @hookimpl
        def collect_metrics(self) -> dict[Any, float]:
            return {"good": 1.0, "\ud800": 2.0, "b\0": 3.0}

    manager.register(Careless(), "careless")
    state = hookline_state()
    manager.emit.on_new_training_run(state=state)
    for state.epoch in range(3):
        manager.emit.on_epoch_end(state=state)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    assert read("SELECT count(*) FROM metrics WHERE name = 'good'") == [(3,)]
    [told] = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert told == (
        "metric '\\ud800' of plugin 'careless' is left out, with 1 others: "
        "its name has a lone surrogate, which UTF-8 cannot encode"
    )


@pytest.mark.parametrize("step", [math.inf, math.nan, 2**70, "soon", None], ids=repr)
def test_a_step_that_is_no_whole_number_costs_its_own_report_alone(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    caplog.set_level("INFO")
    report(manager, hookline_state(), (1, {"loss": 1.0}), (step, {"loss": 2.0}), (3, {"loss": 3.0}))
    assert read("SELECT step FROM metrics WHERE name = 'loss' ORDER BY step") == [(1,), (3,)]
    assert "is left out: a step must be an integer below 2**63" in caplog.text


def test_numbers_too_large_for_a_float_are_left_out_and_others_kept(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    report(manager, hookline_state(eval_scores={"huge": 10**400, "score": 0.5}), (1, {"loss": 10**400, "kl": 1.0}))
    found = dict(read("SELECT name, value FROM metrics WHERE name NOT LIKE 'run/%' AND name NOT LIKE 'time/%'"))
    assert found["kl"] == 1.0
    assert found["score"] == 0.5
    assert not found.keys() & {"huge", "loss"}
