import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hookline_metrics.progress import LiveState, ProgressLines, TimeEstimate, clock_time, open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def live() -> LiveState:
    made = LiveState()
    made.step, made.start_step, made.epoch = 300, 100, 2
    made.total_steps, made.total_epochs = 1000, 10
    made.numbers = {"train/loss": 0.51234, "current_step": 300}
    made.reward, made.lesson = 12.5, "sums"
    return made


def ended(lines: ProgressLines, at: LiveState) -> None:
    assert open_progress("lines", io.StringIO()) is not None  # which the end makes room for again
    lines.end(at)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock, at = Clock(), live()
    estimate = TimeEstimate(clock)
    for clock.seconds in range(61):
        at.step = 100 + max(0, int(clock.seconds) - 30) * 10  # half a minute of compiling, then ten steps a second
        estimate.update(at)
    assert estimate.rate == 10.0
    assert estimate.seconds_left(at) == 60.0


def test_what_was_done_before_a_resume_is_in_the_epoch_and_not_in_the_rate() -> None:
    stream, clock = io.StringIO(), Clock()
    lines, at = ProgressLines(stream, clock), LiveState()
    lines.show(at)  # the run is shown before it is restored
    at.step, at.start_step, at.start_epoch, at.total_epochs = 5000, 5000, 7, 9
    clock.seconds = 2.0
    lines.show(at)
    clock.seconds, at.step = 4.0, 5040
    ended(lines, at)
    assert stream.getvalue() == "epoch 7/9 · step 5040 · 10/s\n"


def test_without_a_terminal_there_is_a_line_every_few_seconds_and_one_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = ProgressLines(stream, clock)
    at = live()
    for clock.seconds, at.step in ((1.0, 120), (6.0, 220)):
        lines.show(at)
    assert stream.getvalue() == ""
    for clock.seconds, at.step in ((10.0, 300), (11.0, 320)):
        lines.show(at)
    assert stream.getvalue() == (
        "epoch 3/10 · step 300/1000 · 20/s · 0:00:35 left · loss 0.5123 · reward 12.5 · sums\n"
    )
    ended(lines, live())
    assert stream.getvalue().count("\n") == 2


def estimates(durations: list[float], *, kinds: str, total: int, look: float = 0.5) -> list[tuple[float, float, float]]:
    """Let epochs take these seconds; gives, for each look that has an estimate, the time, what is left, the estimate.

    :param kinds: how each epoch begins: with `w` weights are handed to a worker, with `r` there is a rollout.
    """
    clock, at = Clock(), LiveState()
    at.total_epochs = total
    estimate = TimeEstimate(clock)
    found = []
    end = sum(durations)
    for epoch, (seconds, kind) in enumerate(zip(durations, kinds, strict=True)):
        at.epoch = epoch
        if kind == "w":
            at.enter_epochs("warm start")
        elif kind == "r":
            at.enter_epochs("rollout")
        ends_at = clock.seconds + seconds
        while clock.seconds + look < ends_at:
            clock.seconds += look
            estimate.update(at)
            left = estimate.seconds_left(at)
            if left is not None:
                found.append((clock.seconds, end - clock.seconds, left))
        clock.seconds = ends_at
        at.end_epoch(epoch, clock.seconds)
    return found


@pytest.mark.parametrize(
    ("durations", "kinds"),
    [
        ([2.0] * 40, "t" * 40),
        ([60.0] + [2.0] * 39, "r" * 40),  # the first epoch compiles
        ([30.0] + [1.5] * 19 + [20.0] + [0.6] * 199, "w" * 20 + "r" * 200),  # a slow warm start, then fast epochs
        ([5.0] + [0.7] * 19 + [20.0] + [3.0] * 29, "w" * 20 + "r" * 30),  # a fast one, then slow epochs
        ([40.0] + ([1.0] * 9 + [11.0]) * 6, "r" * 61),  # an evaluation every ten epochs
    ],
    ids=["even", "compiling", "slow warm start", "fast warm start", "evaluations"],
)
def test_the_time_left_is_never_far_from_the_truth(durations: list[float], kinds: str) -> None:
    found = estimates(durations, kinds=kinds, total=len(durations))
    first_of_kind = max(kinds.find("r"), 0)
    shown_from = sum(durations[: first_of_kind + 2])
    assert found
    assert found[0][0] >= shown_from, "two epochs of the kind are complete"
    for now, left, estimate in found:
        assert left / 2.5 - 5 <= estimate <= left * 2.5 + 5, f"at {now:g} s"
    late = [(left, estimate) for now, left, estimate in found if now > shown_from + 20]
    assert late
    assert sum(abs(estimate - left) for left, estimate in late) / sum(left for left, _ in late) < 0.35


def test_no_time_is_shown_in_a_warm_start_nor_where_the_number_of_epochs_is_not_known() -> None:
    assert estimates([1.5] * 30, kinds="w" * 30, total=500) == []
    at = LiveState()
    for end in range(5):
        at.end_epoch(end, float(end))
    at.epoch = 5
    assert TimeEstimate(lambda: 5.0).seconds_left(at) is None


def test_an_epoch_that_takes_longer_than_the_others_does_not_count_down_past_them() -> None:
    at = LiveState()
    at.total_epochs, at.epoch = 10, 4
    for epoch in range(4):
        at.end_epoch(epoch, 2.0 * epoch)
    assert TimeEstimate(lambda: 7.0).seconds_left(at) == 11.0
    assert TimeEstimate(lambda: 600.0).seconds_left(at) == 10.0


def test_a_first_step_that_compiles_has_no_part_in_the_time_left() -> None:
    clock, at = Clock(), live()
    at.step = at.start_step
    estimate = TimeEstimate(clock)
    for second in range(40):
        clock.seconds = float(second)
        at.step = 100 + max(0, second - 30) * 10  # half a minute of compiling, then ten steps a second
        estimate.update(at)
        left = estimate.seconds_left(at)
        if second <= 31:
            assert left is None
        else:
            assert left == pytest.approx((at.total_steps - at.step) / 10)


def test_what_is_not_known_is_not_shown() -> None:
    stream = io.StringIO()
    ended(ProgressLines(stream, Clock()), LiveState())
    assert stream.getvalue() == "epoch 0 · step 0 · 0/s\n"


def test_a_long_validation_says_that_it_is_one() -> None:
    stream = io.StringIO()
    validating = live()
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
    logger = logging.getLogger("another.library")
    logger.addHandler(handler)
    try:
        bar = open_progress("auto")
        assert bar is not None
        assert open_progress("auto") is None  # one writer
        bar.show(live())
        logger.warning("something happened")
        bar.end(live())
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)
    shown = terminal.getvalue()
    assert "epoch 3/10" in shown
    assert "loss 0.5123 · reward 12.5 · sums" in shown
    before, message, _ = shown.partition("something happened\n")
    assert message
    assert before.endswith("\x1b[2K")  # the line of the bar was cleared first
    ended(ProgressLines(terminal), live())


TRAIN = """
import logging, sys, time
from hookline.plugin_manager import PluginManager
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
