"""A fit that fails, is interrupted or is told to stop is a failed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from hookline import hookimpl
from hookline_hookspecs import TrainerState
from hookline_lightning import HooklineCallback


class Ends:
    """Keeps how a run ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any, int]] = []

    @hookimpl
    def on_training_complete(self, state: TrainerState) -> None:
        self.seen.append(("complete", None, state.step))

    @hookimpl
    def on_training_failed(self, state: TrainerState, error: BaseException) -> None:
        self.seen.append(("failed", type(error).__name__, state.step))


def do_at_step_9(action: Any) -> Callback:
    class Trouble(Callback):
        def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
            if trainer.global_step == 8:
                action()

    return Trouble()


def fail() -> None:
    raise ValueError("in the middle")


@pytest.mark.parametrize(
    ("action", "raised", "told"),
    [
        (fail, ValueError, ("failed", "ValueError", 8)),
        (lambda: signal.raise_signal(signal.SIGINT), SystemExit, ("failed", "KeyboardInterrupt", 8)),
        # Lightning lets the batch end first.
        (lambda: os.kill(os.getpid(), signal.SIGTERM), SystemExit, ("failed", "SIGTERMException", 9)),
    ],
    ids=["exception", "Ctrl-C", "SIGTERM"],
)
def test_a_fit_that_ends_in_the_middle_is_a_failed_run(
    tiny: ModuleType, tmp_path: Path, action: Any, raised: type[BaseException], told: tuple[str, str, int]
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ends = Ends()
    callback = HooklineCallback(tmp_path / "run", plugins={"ends": ends})
    trainer = tiny.trainer(tmp_path, callback, do_at_step_9(action))
    with pytest.raises(raised):
        trainer.fit(tiny.Automatic(), **tiny.loaders())
    assert ends.seen == [told]
    assert callback.session is None
    for number, handler in handlers.items():
        signal.signal(number, handler)  # Lightning leaves Ctrl-C ignored
    assert signal.getsignal(signal.SIGTERM) is handlers[signal.SIGTERM]


def test_a_checkpoint_that_is_saved_on_an_exception_resumes_the_run(tiny: ModuleType, tmp_path: Path) -> None:
    ends = Ends()
    checkpoint = ModelCheckpoint(tmp_path / "ckpt", "{step}", save_on_exception=True, monitor=None, every_n_epochs=50)
    callback = HooklineCallback(tmp_path / "run", plugins={"ends": ends})
    trainer = tiny.trainer(tmp_path, callback, checkpoint, do_at_step_9(fail), enable_checkpointing=True)
    with pytest.raises(ValueError, match="in the middle"):
        trainer.fit(tiny.Automatic(), **tiny.loaders())
    (path,) = (tmp_path / "ckpt").glob("*.ckpt")
    again = HooklineCallback(tmp_path / "run", plugins={"ends": ends})
    tiny.trainer(tmp_path, again).fit(tiny.Automatic(), **tiny.loaders(), ckpt_path=path)
    assert ends.seen == [("failed", "ValueError", 8), ("complete", None, 12)]


def test_a_critical_plugin_ends_the_fit(tiny: ModuleType, tmp_path: Path) -> None:
    class Guard:
        critical = True

        @hookimpl
        def post_training_step(self, state: TrainerState) -> None:
            if state.step == 3:
                raise FloatingPointError("no longer a number")

    ends = Ends()
    callback = HooklineCallback(plugins={"guard": Guard(), "ends": ends})
    with pytest.raises(Exception, match="no longer a number"):
        tiny.trainer(tmp_path, callback).fit(tiny.Automatic(), **tiny.loaders())
    ((end, _, step),) = ends.seen
    assert (end, step) == ("failed", 3)
