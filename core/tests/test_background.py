"""Implementations off the training thread: order, frozen state, bounds, failures, the deadline."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from hookline import PluginManager
from hookline.plugin_manager import PluginError
from hookline_hookspecs import TrainerState, hookimpl


class Recorder:
    """Notes steps and threads; waits for a gate when it has one."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.seen: list[tuple[int, str]] = []
        self.started = threading.Event()
        self.gate = gate

    @hookimpl(background=True)
    def post_training_step(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(500)
        self.seen.append((state.step, threading.current_thread().name))


def emit_step(manager: PluginManager, state: TrainerState) -> None:
    manager.emit.post_training_step(state=state, report_data={"train/loss": 0.5})


def test_calls_come_in_order_on_a_thread_of_the_plugins_own(hookline_manager: PluginManager) -> None:
    recorder = Recorder()
    hookline_manager.register(recorder, "recorder")
    for step in range(20):
        emit_step(hookline_manager, TrainerState(step=step))
    assert hookline_manager.drain() == []
    assert recorder.seen == [(step, "hookline-recorder") for step in range(20)]


def test_calls_of_a_short_while_wait_for_each_other(
    hookline_manager: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.plugin_manager.background.GATHER_SECONDS", 3600.0)
    recorder = Recorder()
    hookline_manager.register(recorder)
    emit_step(hookline_manager, TrainerState(step=0))
    assert not recorder.started.wait(0.2)
    emit_step(hookline_manager, TrainerState(step=1))
    assert hookline_manager.drain() == []  # a caller that waits for them is not kept waiting
    assert [step for step, _ in recorder.seen] == [0, 1]


def test_many_calls_do_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.plugin_manager.background.GATHER_SECONDS", 3600.0)
    manager = PluginManager(background_capacity=4)
    recorder = Recorder()
    manager.register(recorder, "recorder")
    for step in range(2):
        emit_step(manager, TrainerState(step=step))
    assert recorder.started.wait(500)
    manager.close()
    assert not manager.faults.dropped


def test_a_call_sees_the_state_as_it_was_when_the_event_was_emitted(hookline_manager: PluginManager) -> None:
    gate = threading.Event()
    recorder = Recorder(gate)
    hookline_manager.register(recorder)
    state = TrainerState(step=1)
    emit_step(hookline_manager, state)
    state.step = 2
    emit_step(hookline_manager, state)
    state.step = 99
    gate.set()
    hookline_manager.drain()
    assert [step for step, _ in recorder.seen] == [1, 2]


def test_a_call_sees_what_the_plugins_before_it_have_done_to_the_state(hookline_manager: PluginManager) -> None:
    seen = {}

    def background(name: str) -> object:
        class Late:
            after = ("scorer",) if name == "after" else ()

            @hookimpl(background=True)
            def on_epoch_end(self, state: TrainerState) -> None:
                seen[name] = dict(state.eval_scores)

        return Late()

    class Scorer:
        after = ("before",)

        @hookimpl
        def on_epoch_end(self, state: TrainerState) -> None:
            state.eval_scores["x"] = 1.0

    for name, plugin in (("before", background("before")), ("scorer", Scorer()), ("after", background("after"))):
        hookline_manager.register(plugin, name)
    hookline_manager.emit.on_epoch_end(state=TrainerState())
    hookline_manager.drain()
    assert seen == {"before": {}, "after": {"x": 1.0}}


def test_a_coroutine_runs_in_one_event_loop_for_all_its_calls(hookline_manager: PluginManager) -> None:
    loops = []

    class Async:
        @hookimpl
        async def on_epoch_end(self, state: TrainerState) -> None:
            await asyncio.sleep(0)
            loops.append((state.epoch, id(asyncio.get_running_loop()), threading.current_thread().name))

    hookline_manager.register(Async(), "async")
    for epoch in range(3):
        hookline_manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
    assert hookline_manager.drain() == []
    assert [epoch for epoch, _, _ in loops] == [0, 1, 2]
    assert len({loop for _, loop, _ in loops}) == 1
    assert {name for _, _, name in loops} == {"hookline-async"}


def test_a_full_queue_drops_the_oldest_call_and_counts_it() -> None:
    gate = threading.Event()
    recorder = Recorder(gate)
    with PluginManager(background_capacity=3) as manager:
        manager.register(recorder, "slow")
        emit_step(manager, TrainerState(step=0))
        assert recorder.started.wait(500)
        for step in range(1, 8):
            emit_step(manager, TrainerState(step=step))
        gate.set()
        manager.drain()
    assert [step for step, _ in recorder.seen] == [0, 5, 6, 7]
    assert manager.faults.dropped == {"slow": 4}


def test_a_slow_plugin_does_not_hold_up_another(hookline_manager: PluginManager) -> None:
    gate = threading.Event()
    slow, quick = Recorder(gate), Recorder()
    hookline_manager.register(slow, "slow")
    hookline_manager.register(quick, "quick")
    emit_step(hookline_manager, TrainerState(step=1))
    assert hookline_manager.drain(seconds=0.3) == ["slow"]
    assert len(quick.seen) == 1
    gate.set()


def test_a_plugin_that_hangs_is_given_up_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    recorder = Recorder(gate)
    manager = PluginManager(drain_seconds=0.1)
    manager.register(recorder, "hanging")
    for step in range(3):
        emit_step(manager, TrainerState(step=step))
    assert recorder.started.wait(500)
    manager.close()
    gate.set()
    assert "plugin 'hanging' did not finish its background work within 0.1 s" in caplog.text
    assert manager.faults.dropped == {"hanging": 3}


def test_a_failure_in_the_background_is_counted_and_quarantined(hookline_manager: PluginManager) -> None:
    class Failing:
        calls = 0

        @hookimpl(background=True)
        def on_epoch_end(self) -> None:
            self.calls += 1
            raise ValueError("behind the scenes")

    failing = Failing()
    hookline_manager.register(failing, "failing")
    for epoch in range(6):
        hookline_manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
        hookline_manager.drain()
    assert failing.calls == 3
    assert hookline_manager.faults.failures_of("failing") == 3
    assert "failing" in hookline_manager.faults.quarantined


def test_a_plugin_that_calls_exit_in_the_background_has_failed_and_nothing_more(
    hookline_manager: PluginManager,
) -> None:
    class Quitter:
        @hookimpl(background=True)
        def on_epoch_end(self) -> None:
            raise SystemExit(3)

    hookline_manager.register(Quitter(), "quitter")
    for epoch in range(2):
        hookline_manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
    assert hookline_manager.drain() == []
    (fault,) = hookline_manager.faults.faults.values()
    assert (fault.count, fault.error) == (2, "SystemExit: 3")


def test_a_critical_failure_in_the_background_is_raised_at_the_next_event(hookline_manager: PluginManager) -> None:
    class Critical:
        critical = True

        @hookimpl(background=True)
        def on_epoch_end(self) -> None:
            raise OSError("disk full")

    hookline_manager.register(Critical(), "critical")
    hookline_manager.emit.pre_training(state=TrainerState(), report_data={})
    hookline_manager.emit.on_epoch_end(state=TrainerState())
    hookline_manager.drain()
    with pytest.raises(OSError, match="disk full") as caught:
        hookline_manager.emit.pre_training(state=TrainerState(), report_data={})
    assert caught.value.__notes__ == ["raised by plugin 'critical' in on_epoch_end"]
    hookline_manager.emit.pre_training(state=TrainerState(), report_data={})


def test_a_critical_failure_after_the_last_event_is_raised_at_the_end() -> None:
    class Critical:
        critical = True

        @hookimpl(background=True)
        def on_training_complete(self) -> None:
            raise OSError("disk full")

    manager = PluginManager()
    manager.register(Critical())
    manager.emit.on_training_complete(state=TrainerState())
    with pytest.raises(OSError, match="disk full"):
        manager.close()


def test_a_plugin_that_is_unregistered_finishes_what_it_was_sent(hookline_manager: PluginManager) -> None:
    gate = threading.Event()
    recorder = Recorder(gate)
    hookline_manager.register(recorder, "recorder")
    for step in range(3):
        emit_step(hookline_manager, TrainerState(step=step))
    assert recorder.started.wait(500)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "hookline-recorder"]
    hookline_manager.unregister(recorder)
    gate.set()
    thread.join(500)
    assert [step for step, _ in recorder.seen] == [0, 1, 2]


def test_without_a_close_the_work_is_still_done_before_the_interpreter_ends() -> None:
    code = """
import time
from hookline import PluginManager, hookimpl
from hookline_hookspecs import TrainerState

class Slow:
    @hookimpl(background=True)
    def on_training_complete(self, state):
        time.sleep(0.3)
        print("done", flush=True)

manager = PluginManager()
manager.register(Slow())
manager.emit.on_training_complete(state=TrainerState())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert result.stdout.split() == ["done"]


@pytest.mark.parametrize("event", ["collect_metrics", "restore_training_run"])
def test_a_background_implementation_of_an_event_with_results_is_an_error(
    hookline_manager: PluginManager, event: str
) -> None:
    @hookimpl(background=True, specname=event)
    def implementation(self) -> None: ...

    plugin = type("Late", (), {"implementation": implementation})()
    with pytest.raises(PluginError, match=f"plugin 'Late': {event} runs in the background, but the event is of kind"):
        hookline_manager.register(plugin)


def test_a_background_wrapper_is_an_error(hookline_manager: PluginManager) -> None:
    class Wrapper:
        @hookimpl(background=True, wrapper=True)
        def on_epoch_end(self):
            yield

    with pytest.raises(PluginError, match="on_epoch_end is a wrapper and cannot run in the background"):
        hookline_manager.register(Wrapper())
