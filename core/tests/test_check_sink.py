"""`check_sink`, tried on sinks that are good and bad."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hookline.testing import check_sink, sinks
from hookline_hookspecs import CheckpointRecord, hookimpl
from hookline_hookspecs.sinks import Report, Run, Samples, Sink


class Kept(Sink):
    """Keeps the steps that it is given."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(exist_ok=True)
        self.run = run
        self.steps: list[int] = []

    def write(self, reports: Sequence[Report]) -> None:
        self.steps += [report.step for report in reports]


def plugin_with(*, registered: Any = None, sink: Callable[[Run], Sink] = Kept) -> Any:
    class Plugin:
        @hookimpl
        def register_sinks(self, run: Run) -> Any:
            return {"kept": lambda: sink(run)} if registered is None else registered

    return Plugin


def test_a_good_sink_passes_and_is_opened_again_as_of_a_resumed_run() -> None:
    opened = []
    check_sink(plugin_with(sink=lambda run: opened.append(run.resume) or Kept(run)))
    assert opened == [False, True]


@pytest.mark.parametrize(
    ("registered", "expected"),
    [
        (3, "register_sinks must return a dictionary, not 3"),
        ({}, "register_sinks returns no sink"),
        ({"kept": "package:Class"}, "sink 'kept' must be a function that opens it, not 'package:Class'"),
        ({1: Kept}, "the name of a sink must be a string, not 1"),
    ],
)
def test_what_is_no_sink_is_found(registered: Any, expected: str) -> None:
    with pytest.raises(AssertionError, match=expected):
        check_sink(plugin_with(registered=registered))


def test_a_plugin_without_sinks_is_found() -> None:
    class Idle:
        @hookimpl
        def on_epoch_end(self) -> None: ...

    with pytest.raises(AssertionError, match="register_sinks must return a dictionary, not None"):
        check_sink(Idle)


class Fussy(Kept):
    def write(self, reports: Sequence[Report]) -> None:
        if any(value != value for report in reports for value in report.numbers.values()):
            raise ValueError("not a number")


class NeedsLesson(Kept):
    def write_samples(self, samples: Samples) -> None:
        assert samples.lesson is not None, "no lesson"


class NeedsPath(Kept):
    def write_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        assert checkpoint.path is not None, "no path"


class ClosesOnce(Kept):
    def close(self) -> None:
        if self.run.resume:
            raise RuntimeError("closed before")


@pytest.mark.parametrize(
    ("sink", "expected"),
    [(Fussy, "not a number"), (NeedsLesson, "no lesson"), (NeedsPath, "no path"), (ClosesOnce, "closed before")],
)
def test_the_error_of_a_sink_is_raised(sink: Any, expected: str) -> None:
    with pytest.raises((ValueError, AssertionError, RuntimeError), match=expected):
        check_sink(plugin_with(sink=sink))


def test_a_sink_that_changes_the_reports_is_found() -> None:
    class Changes(Kept):
        def write(self, reports: Sequence[Report]) -> None:
            for report in reports:
                report.numbers["mine"] = 1.0  # type: ignore[index]

    with pytest.raises(AssertionError, match="sink 'kept' changes the reports"):
        check_sink(plugin_with(sink=Changes))


def test_a_sink_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "SECONDS", 0.1)
    with pytest.raises(AssertionError, match="sink 'kept' has not come to an end within 0.1 s"):
        check_sink(plugin_with(sink=lambda run: threading.Event().wait()))


def test_a_sink_that_leaves_a_thread_is_found() -> None:
    is_over = threading.Event()

    class Leaves(Kept):
        def close(self) -> None:
            threading.Thread(target=is_over.wait, name="left-behind", daemon=False).start()

    try:
        with pytest.raises(AssertionError, match="leaves threads that keep the process from ending: left-behind"):
            check_sink(plugin_with(sink=Leaves))
    finally:
        is_over.set()


def test_a_plugin_that_opens_its_sink_in_the_event_is_found() -> None:
    class Eager:
        @hookimpl
        def register_sinks(self, run: Run) -> Any:
            sink = Kept(run)
            return {"kept": lambda: sink}

    with pytest.raises(AssertionError, match="register_sinks writes files: open them with the sink"):
        check_sink(Eager)
