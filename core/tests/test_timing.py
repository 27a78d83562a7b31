"""Time per plugin and event, the table at the end, and the trace file."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hookline import PluginManager
from hookline.plugin_manager.listing import print_summary
from hookline.plugin_manager.timing import Timing
from hookline_hookspecs import TrainerState, hookimpl


class Busy:
    @hookimpl
    def on_epoch_end(self) -> None:
        sum(range(1000))

    @hookimpl(background=True)
    def on_epoch_start(self) -> None: ...

    @hookimpl(wrapper=True)
    def on_train_phase_end(self):
        return (yield)


class Failing:
    @hookimpl
    def on_epoch_end(self) -> None:
        raise ValueError("no")


def run(manager: PluginManager) -> None:
    for epoch in range(5):
        state = TrainerState(epoch=epoch)
        manager.emit.on_epoch_start(state=state)
        manager.emit.on_train_phase_end(state=state)
        manager.emit.on_epoch_end(state=state)
    manager.drain()


def test_every_call_is_counted_for_its_plugin_and_event(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Busy(), "busy")
    hookline_manager.register(Failing(), "failing")
    timer = hookline_manager.enable_timing()
    run(hookline_manager)
    calls = {key: (timing.calls, timing.background) for key, timing in timer.timings.items()}
    assert calls == {
        ("busy", "on_epoch_start"): (5, True),
        ("busy", "on_train_phase_end"): (5, False),
        ("busy", "on_epoch_end"): (5, False),
        ("failing", "on_epoch_end"): (3, False),
    }
    busy = timer.timings["busy", "on_epoch_end"]
    assert 0 < busy.longest_ns <= busy.total_ns


def test_the_trace_file_holds_one_complete_event_for_each_call(hookline_manager: PluginManager, tmp_path: Path) -> None:
    hookline_manager.register(Busy(), "busy")
    timer = hookline_manager.enable_timing()
    run(hookline_manager)
    timer.write_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert len(trace["traceEvents"]) == 15
    for event in trace["traceEvents"]:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        assert event["name"] == f"busy.{event['cat']}"
    assert len({event["tid"] for event in trace["traceEvents"]}) == 2


def test_the_summary_shows_faults_and_times(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Busy(), "busy")
    hookline_manager.register(Failing(), "failing")
    hookline_manager.enable_timing()
    run(hookline_manager)
    output = io.StringIO()
    print_summary(hookline_manager, Console(file=output, width=140))
    text = output.getvalue()
    for expected in ("failing", "ValueError: no", "quarantined: failed 3 times in a row in on_epoch_end", "busy"):
        assert expected in text


def test_brackets_in_the_message_of_a_failure_are_shown_as_they_are(hookline_manager: PluginManager) -> None:
    class Broken:
        @hookimpl
        def on_epoch_end(self) -> None:
            raise ValueError("expected [batch, time] in [/data/set] :warning:")

    hookline_manager.enable_timing()
    hookline_manager.register(Broken(), "broken[a]")
    hookline_manager.emit.on_epoch_end(state=TrainerState())
    output = io.StringIO()
    print_summary(hookline_manager, Console(file=output, width=140))
    assert "ValueError: expected [batch, time] in [/data/set] :warning:" in output.getvalue()
    assert output.getvalue().count("broken[a]") == 2  # among the faults, and among the timings


def test_a_long_table_of_times_adds_up_what_costs_least(hookline_manager: PluginManager) -> None:
    timer = hookline_manager.enable_timing()
    for number in range(20):
        timer.timings[f"plugin-{number}", "on_epoch_end"] = Timing(
            f"plugin-{number}", "on_epoch_end", 1, 10**9 - number
        )
    output = io.StringIO()
    print_summary(hookline_manager, Console(file=output, width=140))
    assert "plugin-14" in output.getvalue()
    assert "plugin-15" not in output.getvalue()
    assert "and 5 more, 5,000.0 ms in all" in output.getvalue()


def test_the_summary_is_silent_when_all_went_well(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Busy(), "busy")
    run(hookline_manager)
    output = io.StringIO()
    print_summary(hookline_manager, Console(file=output))
    assert output.getvalue() == ""


@pytest.mark.parametrize("width", [40, 80])
def test_names_are_whole_in_the_tables_at_any_width(hookline_manager: PluginManager, width: int) -> None:
    name = "a-plugin-with-a-name-of-some-length"

    class Broken:
        @hookimpl
        def on_train_phase_start(self) -> None:
            raise ValueError("out of ink, and of paper, and of patience, all of them at once and for good")

    hookline_manager.enable_timing()
    hookline_manager.register(Broken(), name)
    hookline_manager.emit.on_train_phase_start(state=TrainerState())
    shown = io.StringIO()
    print_summary(hookline_manager, Console(file=shown, width=width))
    rows = [line for line in shown.getvalue().splitlines() if name in line]
    assert len(rows) == 2  # among the faults, and among the timings
    assert all("on_train_phase_start" in row for row in rows)
    assert "…" not in shown.getvalue()
