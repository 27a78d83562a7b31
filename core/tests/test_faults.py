"""What becomes of a plugin that fails, and of the others."""

import gc
import linecache
import logging
import signal
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pluggy
import pytest

from hookline import PluginManager
from hookline.plugin_manager import HooklineError, PluginError
from hookline.plugin_manager.manager import Overrides
from hookline.session import Terminated
from hookline_hookspecs import EpisodeBatch, TrainerState, hookimpl


class Failing:
    """Fails as often as it is told to, then works."""

    def __init__(self, failures: int = 1_000_000, **attributes: object) -> None:
        self.calls = 0
        self.failures = failures
        vars(self).update(attributes)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise ValueError(f"failure {self.calls}")


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def on_epoch_end(self) -> None:
        self.calls += 1


def emit_epochs(manager: PluginManager, count: int) -> None:
    for epoch in range(count):
        manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))


def test_an_observer_that_fails_is_logged_with_its_name_and_the_others_are_called(
    hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = Counting(), Counting()
    for plugin, name in ((late, "late"), (Failing(), "failing"), (early, "early")):
        hookline_manager.register(plugin, name, overrides=Overrides(distribution="acme 1.2"))
    emit_epochs(hookline_manager, 1)
    assert (early.calls, late.calls) == (1, 1)
    record = caplog.records[0]
    assert record.getMessage() == "plugin 'failing' (acme 1.2) failed in on_epoch_end: ValueError: failure 1"
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None


def test_a_quarantined_plugin_is_not_called_again(hookline_manager: PluginManager) -> None:
    failing = Failing()
    hookline_manager.register(failing, "failing")
    emit_epochs(hookline_manager, 10)
    assert failing.calls == 3
    assert hookline_manager.faults.quarantined == {"failing": "failed 3 times in a row in on_epoch_end"}


def test_a_success_in_between_ends_the_row_of_failures(hookline_manager: PluginManager) -> None:
    class EverySecond:
        calls = 0

        @hookimpl
        def on_epoch_end(self) -> None:
            self.calls += 1
            if self.calls % 3:
                raise ValueError("again")

    plugin = EverySecond()
    hookline_manager.register(plugin)
    emit_epochs(hookline_manager, 30)
    assert plugin.calls == 30
    assert not hookline_manager.faults.quarantined


def test_failures_are_counted_by_plugin_and_event(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Failing(2), "failing")
    emit_epochs(hookline_manager, 5)
    (fault,) = hookline_manager.faults.faults.values()
    assert (fault.plugin, fault.event, fault.count, fault.error) == (
        "failing",
        "on_epoch_end",
        2,
        "ValueError: failure 1",
    )


def test_a_critical_plugin_stops_the_run_after_all_others_were_called(hookline_manager: PluginManager) -> None:
    early, late = Counting(), Counting()
    hookline_manager.register(late)
    hookline_manager.register(Failing(critical=True), "checkpoint", overrides=Overrides(distribution="acme 0.3"))
    hookline_manager.register(early)
    with pytest.raises(ValueError, match="failure 1") as caught:
        emit_epochs(hookline_manager, 1)
    assert caught.value.__notes__ == ["raised by plugin 'checkpoint' (acme 0.3) in on_epoch_end"]
    assert (early.calls, late.calls) == (1, 1)


def test_several_critical_failures_are_raised_together(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Failing(on_error="raise"), "a")
    hookline_manager.register(Failing(on_error="raise"), "b")
    with pytest.raises(ExceptionGroup, match="2 plugins failed in on_epoch_end") as caught:
        emit_epochs(hookline_manager, 1)
    notes = sorted(note for error in caught.value.exceptions for note in error.__notes__)
    assert notes == ["raised by plugin 'a' in on_epoch_end", "raised by plugin 'b' in on_epoch_end"]


def test_disable_takes_a_plugin_out_at_its_first_failure(hookline_manager: PluginManager) -> None:
    failing = Failing(on_error="disable")
    hookline_manager.register(failing, "failing")
    emit_epochs(hookline_manager, 5)
    assert failing.calls == 1
    assert hookline_manager.faults.quarantined == {"failing": "failed in on_epoch_end"}


def test_the_users_config_has_the_last_word_on_the_policy(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Failing(critical=True), "x", overrides=Overrides(on_error="warn"))
    emit_epochs(hookline_manager, 1)
    assert hookline_manager.faults.failures_of("x") == 1


def test_a_policy_that_does_not_exist_is_an_error(hookline_manager: PluginManager) -> None:
    with pytest.raises(
        PluginError, match=r"on_error must be 'raise', 'warn' or 'disable', not 'warm' \(did you mean 'warn'"
    ):
        hookline_manager.register(Failing(on_error="warm"), "x")


def test_an_error_among_the_arguments_reaches_all_even_when_a_plugin_fails(hookline_manager: PluginManager) -> None:
    seen = []

    class Watcher:
        @hookimpl
        def on_training_failed(self, state: TrainerState, error: BaseException) -> None:
            seen.append(error)
            raise ValueError("the watcher fails too")

    for name in ("a", "b", "c"):
        hookline_manager.register(Watcher(), name)
    cause = RuntimeError("the run's own")
    hookline_manager.emit.on_training_failed(state=TrainerState(), error=cause)
    assert seen == [cause] * 3


def test_keyboard_interrupt_is_never_held_back(hookline_manager: PluginManager) -> None:
    class Interrupted:
        @hookimpl
        def on_epoch_end(self) -> None:
            raise KeyboardInterrupt

    hookline_manager.register(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        emit_epochs(hookline_manager, 1)


def test_a_failing_decider_leaves_the_decision_to_the_next(hookline_manager: PluginManager) -> None:
    class Broken:
        @hookimpl
        def restore_training_run(self) -> None:
            raise OSError("no disk")

    class Working:
        @hookimpl
        def restore_training_run(self) -> str:
            return "restored"

    hookline_manager.register(Working())
    hookline_manager.register(Broken())
    assert hookline_manager.emit.restore_training_run(state=TrainerState()) == "restored"


def test_a_critical_failure_is_raised_even_when_another_decides(hookline_manager: PluginManager) -> None:
    class Broken:
        critical = True

        @hookimpl
        def restore_training_run(self) -> None:
            raise OSError("no disk")

    class Working:
        @hookimpl
        def restore_training_run(self) -> str:
            return "restored"

    hookline_manager.register(Working())
    hookline_manager.register(Broken())
    with pytest.raises(OSError, match="no disk"):
        hookline_manager.emit.restore_training_run(state=TrainerState())


@pytest.mark.parametrize("moment", ["before", "after", "never", "twice"])
def test_a_wrapper_that_fails_is_as_if_it_were_not_there(hookline_manager: PluginManager, moment: str) -> None:
    class Wrapper:
        @hookimpl(wrapper=True)
        def collect_metrics(self):
            if moment == "before":
                raise ValueError("before")
            if moment != "never":
                yield
            if moment == "twice":
                yield
            raise ValueError("after")

    class Plain:
        @hookimpl
        def collect_metrics(self):
            return {"a": 1}

    hookline_manager.register(Wrapper(), "wrapper")
    hookline_manager.register(Plain(), "plain")
    for _ in range(5):
        assert hookline_manager.emit.collect_metrics(state=TrainerState()).items() == [("plain", {"a": 1})]
    assert hookline_manager.faults.failures_of("wrapper") == 3
    assert "wrapper" in hookline_manager.faults.quarantined


def test_a_wrapper_sees_the_failure_of_a_critical_plugin_and_lets_it_through(hookline_manager: PluginManager) -> None:
    seen = []

    class Wrapper:
        @hookimpl(wrapper=True)
        def on_epoch_end(self):
            try:
                return (yield)
            except ValueError as error:
                seen.append(str(error))
                raise

    hookline_manager.register(Wrapper(), "wrapper")
    hookline_manager.register(Failing(critical=True), "failing")
    with pytest.raises(ValueError, match="failure 1"):
        emit_epochs(hookline_manager, 1)
    assert seen == ["failure 1"]
    assert hookline_manager.faults.failures_of("wrapper") == 0


def test_a_plugin_registered_again_is_out_of_quarantine(hookline_manager: PluginManager) -> None:
    failing = Failing(3)
    hookline_manager.register(failing, "failing")
    emit_epochs(hookline_manager, 4)
    hookline_manager.unregister(failing)
    hookline_manager.register(failing, "failing")
    emit_epochs(hookline_manager, 2)
    assert failing.calls == 5


class CustomBaseException(BaseException):
    pass


class Leaving:
    """Raises what no `except Exception` catches."""

    def __init__(self, error: BaseException, **attributes: object) -> None:
        self.error = error
        vars(self).update(attributes)

    @hookimpl
    def on_epoch_end(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), CustomBaseException("odd")])
def test_a_plugin_that_leaves_by_a_base_exception_has_failed_and_the_others_are_called(
    hookline_manager: PluginManager, error: BaseException
) -> None:
    early, late = Counting(), Counting()
    for plugin, name in ((late, "late"), (Leaving(error), "leaving"), (early, "early")):
        hookline_manager.register(plugin, name)
    emit_epochs(hookline_manager, 5)
    assert (early.calls, late.calls) == (5, 5)
    (fault,) = hookline_manager.faults.faults.values()
    assert (fault.plugin, fault.event, fault.count) == ("leaving", "on_epoch_end", 3)
    assert "leaving" in hookline_manager.faults.quarantined


def test_a_critical_plugin_that_calls_exit_fails_the_run_by_an_error_that_names_it(
    hookline_manager: PluginManager,
) -> None:
    other = Counting()
    hookline_manager.register(other)
    hookline_manager.register(
        Leaving(SystemExit(0), critical=True), "leaving", overrides=Overrides(distribution="acme 2.0")
    )
    with pytest.raises(HooklineError) as caught:
        emit_epochs(hookline_manager, 1)
    assert str(caught.value) == (
        "in on_epoch_end plugin 'leaving' (acme 2.0) raised SystemExit(0), which would end the process. "
        "To end the run, set state.stop_reason; to report a failure, raise an Exception"
    )
    assert other.calls == 1


def test_a_signal_to_stop_is_never_held_back(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Leaving(Terminated(signal.SIGTERM)))
    with pytest.raises(Terminated):
        emit_epochs(hookline_manager, 1)
    assert not hookline_manager.faults


@pytest.mark.parametrize("style", ["wrapper", "hookwrapper"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0), GeneratorExit()])
def test_a_wrapper_of_either_style_that_raises_anything_is_as_if_it_were_not_there(
    hookline_manager: PluginManager, style: str, moment: str, error: BaseException
) -> None:
    class Wrapper:
        @pluggy.HookimplMarker("hookline")(**{style: True})
        def collect_metrics(self):
            if moment == "before":
                raise error
            yield
            raise error

    class Plain:
        @hookimpl
        def collect_metrics(self):
            return {"a": 1}

    hookline_manager.register(Wrapper(), "wrapper")
    hookline_manager.register(Plain(), "plain")
    for _ in range(5):
        assert hookline_manager.emit.collect_metrics(state=TrainerState()).items() == [("plain", {"a": 1})]
    assert hookline_manager.faults.failures_of("wrapper") == 3
    assert "wrapper" in hookline_manager.faults.quarantined


def test_an_old_style_wrapper_changes_the_result(hookline_manager: PluginManager) -> None:
    class Wrapper:
        @pluggy.HookimplMarker("hookline")(hookwrapper=True)
        def collect_metrics(self, state):
            outcome = yield
            outcome.force_result([*outcome.get_result(), {"epoch": state.epoch}])

    class Plain:
        @hookimpl
        def collect_metrics(self):
            return {"a": 1}

    hookline_manager.register(Wrapper(), "wrapper")
    hookline_manager.register(Plain(), "plain")
    collected = hookline_manager.emit.collect_metrics(state=TrainerState(epoch=4))
    assert collected.items() == [("plain", {"a": 1}), ("wrapper", {"epoch": 4})]


def test_failures_are_logged_at_the_first_the_tenth_and_the_hundredth(
    hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    class EverySecond:
        calls = 0

        @hookimpl
        def on_epoch_end(self) -> None:
            self.calls += 1
            if self.calls % 2:
                raise ValueError(f"call {self.calls}")

    hookline_manager.register(EverySecond(), "flaky")
    emit_epochs(hookline_manager, 500)
    assert caplog.messages == [
        "plugin 'flaky' failed in on_epoch_end: ValueError: call 1",
        "plugin 'flaky' failed in on_epoch_end, 10 times so far: ValueError: call 19",
        "plugin 'flaky' failed in on_epoch_end, 100 times so far: ValueError: call 199",
    ]
    assert hookline_manager.faults.failures_of("flaky") == 250


def test_an_exception_without_a_readable_message_is_a_failure_like_any_other(
    hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    other = Counting()
    hookline_manager.register(other)
    hookline_manager.register(Leaving(Unreadable()), "leaving")
    emit_epochs(hookline_manager, 1)
    assert other.calls == 1
    assert caplog.messages == ["plugin 'leaving' failed in on_epoch_end: Unreadable (its message cannot be shown)"]


class Scorer:
    """Scores a batch, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    @hookimpl
    def score_episodes(self) -> dict[str, list[float]]:
        if self.error is not None:
            raise self.error
        return {"own": [1.0]}


def test_an_emitter_can_ask_which_plugins_failed_in_its_emission(hookline_manager: PluginManager) -> None:
    class FailingWrapper:
        @hookimpl(wrapper=True)
        def score_episodes(self) -> Iterator[None]:
            yield
            raise LookupError("too late")

    error = ValueError("no model")
    for plugin, name in ((Scorer(), "good"), (Scorer(error), "bad"), (FailingWrapper(), "around")):
        hookline_manager.register(plugin, name)
    with hookline_manager.failures_in("score_episodes") as failures:
        collected = hookline_manager.emit.score_episodes(batch=EpisodeBatch([]))
    assert collected.items() == [("good", {"own": [1.0]})]
    assert failures["bad"] is error
    assert {name: str(error) for name, error in failures.items()} == {"bad": "no model", "around": "too late"}
    assert hookline_manager.faults.failures_of("bad") == 1


def test_failures_before_after_of_other_events_and_on_other_threads_are_not_those_of_an_emission(
    hookline_manager: PluginManager,
) -> None:
    batch, emit = EpisodeBatch([]), hookline_manager.emit
    hookline_manager.register(Scorer(ValueError("no model")), "bad")
    hookline_manager.register(Failing(), "failing")
    emit.score_episodes(batch=batch)
    with hookline_manager.failures_in("score_episodes") as outer:
        emit_epochs(hookline_manager, 1)
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(emit.score_episodes, batch=batch).result()
        with hookline_manager.failures_in("on_epoch_end") as inner:
            emit_epochs(hookline_manager, 1)
        assert outer == {}
        assert list(inner) == ["failing"]
        emit.score_episodes(batch=batch)
    assert list(outer) == ["bad"]
    assert hookline_manager.quarantined_in("score_episodes") == {"bad": "failed 3 times in a row in score_episodes"}
    assert hookline_manager.quarantined_in("on_epoch_end") == {}


def test_a_traceback_through_an_emitter_shows_its_source(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Failing(critical=True), "failing")
    with pytest.raises(ValueError) as caught:
        emit_epochs(hookline_manager, 1)
    shown = "".join(traceback.format_exception(caught.value))
    assert 'File "<hookline emitter of on_epoch_end' in shown
    assert "_call(state)" in shown


def test_the_source_of_an_emitter_is_forgotten_with_its_code() -> None:
    def kept() -> int:
        return sum(name.startswith("<hookline emitter") for name in linecache.cache)

    gc.collect()
    before = kept()
    manager = PluginManager()
    for _ in range(20):
        plugin = Counting()
        manager.register(plugin)
        emit_epochs(manager, 1)
        manager.unregister(plugin)
        assert kept() <= before + 1
    del manager
    gc.collect()
    assert kept() == before
