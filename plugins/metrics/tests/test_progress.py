import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hookline_metrics.moment import Moment
from hookline_metrics.progress import Pace, ProgressLines, clock_time, open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def moment() -> Moment:
    made = Moment()
    made.step, made.start_step, made.epoch = 300, 100, 2
    made.total_steps, made.total_epochs = 1000, 10
    made.numbers = {"train/loss": 0.51234, "current_step": 300}
    made.reward, made.lesson = 12.5, "sums"
    return made


def ended(lines: ProgressLines, at: Moment) -> None:
    assert open_progress("lines", io.StringIO()) is not None  # which the end makes room for again
    lines.end(at)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock, at = Clock(), moment()
    pace = Pace(clock)
    for clock.seconds in range(61):
        at.step = 100 + max(0, int(clock.seconds) - 30) * 10  # half a minute of compiling, then ten steps a second
        pace.look(at)
    assert pace.rate == 10.0
    assert pace.seconds_left(at) == 60.0


def test_without_a_terminal_there_is_a_line_every_few_seconds_and_one_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = ProgressLines(stream, clock)
    clock.seconds = 1.0
    lines.show(moment())
    assert stream.getvalue() == ""
    for clock.seconds in (10.0, 11.0):
        lines.show(moment())
    assert stream.getvalue() == (
        "epoch 3/10 · step 300/1000 · 20/s · 0:00:35 left · loss 0.5123 · reward 12.5 · sums\n"
    )
    ended(lines, moment())
    assert stream.getvalue().count("\n") == 2


def test_where_the_number_of_steps_is_not_known_epochs_tell_how_long_it_will_take() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = ProgressLines(stream, clock)
    clock.seconds = 10.0
    resumed = moment()
    resumed.total_steps, resumed.start_epoch, resumed.epoch = None, 2, 4
    lines.show(resumed)
    assert stream.getvalue().startswith("epoch 5/10 · step 300 · 20/s · 0:00:30 left ·")


def test_what_is_not_known_is_not_shown() -> None:
    stream = io.StringIO()
    ended(ProgressLines(stream, Clock()), Moment())
    assert stream.getvalue() == "epoch 0 · step 0 · 0/s\n"


def test_a_long_validation_says_that_it_is_one() -> None:
    stream = io.StringIO()
    validating = moment()
    validating.phase = "validation"
    ended(ProgressLines(stream, Clock()), validating)
    assert stream.getvalue().endswith("· validation\n")


def test_times_are_hours_minutes_and_seconds() -> None:
    assert [clock_time(seconds) for seconds in (5, 65, 3725.4)] == ["0:00:05", "0:01:05", "1:02:05"]


def test_it_can_be_turned_off() -> None:
    assert open_progress("off", Terminal()) is None


def test_a_terminal_has_a_bar_and_what_is_logged_meanwhile_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    handler = logging.StreamHandler(terminal)
    logger = logging.getLogger("somebody.else")
    logger.addHandler(handler)
    try:
        bar = open_progress("auto")
        assert bar is not None
        assert open_progress("auto") is None  # one writer
        bar.show(moment())
        logger.warning("something happened")
        bar.end(moment())
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)
    shown = terminal.getvalue()
    assert "epoch 3/10" in shown
    assert "loss 0.5123 · reward 12.5 · sums" in shown
    before, message, _ = shown.partition("something happened\n")
    assert message
    assert before.endswith("\x1b[2K")  # the line of the bar was cleared first
    ended(ProgressLines(terminal), moment())


TRAIN = """
import logging, sys, time
from hookline.plugins import PluginManager
from hookline_hookspecs import TrainerState
from hookline_metrics import Metrics, Options

logging.basicConfig(level=logging.WARNING)
with PluginManager(rank=int(sys.argv[1])) as manager:
    manager.register(Metrics(Options(), manager.emit))
    state = TrainerState(total_steps=100, total_epochs=1)
    manager.emit.on_new_training_run(state=state)
    manager.emit.pre_training(state=state, report_data={})
    manager.emit.on_epoch_start(state=state)
    for state.step in range(1, 101):
        manager.emit.log_metrics(report_data={"train/loss": 0.5}, step=state.step)
        time.sleep(0.01)
        if state.step == 99:
            logging.warning("something happened")
            print("for a file")
    manager.emit.on_training_complete(state=state)
"""


def test_a_run_on_a_real_terminal_ends_with_a_full_bar() -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", TRAIN, "0"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        text=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(ours)
    printed, _ = child.communicate()
    assert child.returncode == 0
    assert printed == "for a file\n"
    text = shown.decode()
    assert "epoch 1/1" in text
    assert "100/100" in text
    assert "something happened\r\n" in text


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_only_the_first_rank_writes(tmp_path: Path, rank: int, lines: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", TRAIN, str(rank)], stderr=subprocess.PIPE, text=True, check=True, cwd=tmp_path
    )
    assert result.stderr.count("epoch 1/1 · step 100/100") == lines
