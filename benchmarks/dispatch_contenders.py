"""The ways of telling N callbacks that a training step is over: ours, pluggy's, and those of three trainers.

Each is set up as its own framework does it, with its real classes, and calls N callbacks whose bodies are empty. Where
a framework does more around a call than dispatch (stable-baselines3 hands its local variables to every callback before
each step, transformers always has a callback of its own), that is left out, to its advantage.

All callbacks of a framework are of one class where it allows that, again to its advantage: the interpreter caches
attributes by type, and stable-baselines3 takes up to three times as long with callbacks of different classes, which is
what a real run has.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from timeit import Timer
from types import CodeType, FrameType
from typing import Any, Final

import pluggy

from hookline import PluginManager
from hookline_hookspecs import PHASES, PROJECT_NAME, TrainerState, hookimpl

__all__ = ["CALLS_PER_STATEMENT", "CONTENDERS", "NOTHING_DUE", "Contender", "hookline", "method"]

CALLS_PER_STATEMENT: Final = 10
"""A statement is so many calls in a row, so that the loop around them does not count."""

STEP: Final = 2001
SCHEDULE: Final = 1000
"""Due at step 2000, and not at `STEP`."""

REPORT_DATA: Final = {"current_epoch": 2, "current_step": STEP, "total_steps": 10_000, "train/loss": 0.5}


@dataclass(frozen=True)
class Contender:
    """A call to measure, as source and the names in it, and the code of the bodies that it ends up in."""

    call: str
    names: Mapping[str, Any]
    body: CodeType

    def timer(self) -> Timer:
        return Timer("\n".join([self.call] * CALLS_PER_STATEMENT), globals=dict(self.names))

    def check(self, expected: int) -> None:
        """Raise unless one call runs so many bodies. The interpreter counts them, so that they can stay empty."""
        code = compile(self.call, "<call>", "exec")
        seen = _count_calls(lambda: exec(code, dict(self.names)), self.body)
        if seen != expected:
            raise RuntimeError(f"{self.call} ran {seen} callbacks, not {expected}: what it takes means nothing")


def _count_calls(function: Callable[[], object], body: CodeType) -> int:
    seen = 0

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        seen += event == "call" and frame.f_code is body

    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


class Plain:
    @hookimpl
    def post_training_step(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        pass


class Scheduled:
    @hookimpl(every=SCHEDULE)
    def post_training_step(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        pass


class Elsewhere:
    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        pass


def method() -> Contender:
    """A bare method call with the arguments of the event."""
    names = {"bare": Plain(), "state": TrainerState(step=STEP), "report_data": REPORT_DATA}
    call = "bare.post_training_step(state=state, report_data=report_data)"
    return Contender(call, names, Plain.post_training_step.__code__)


def hookline(count: int) -> Contender:
    """An event with `count` plain implementations."""
    return _emit_to(Plain, count, TrainerState(step=STEP), Plain.post_training_step.__code__)


def hookline_not_due(count: int) -> Contender:
    """An event with `count` implementations that have a schedule, after all were called when they were due."""
    state = TrainerState(step=STEP - STEP % SCHEDULE)
    contender = _emit_to(Scheduled, count, state, Scheduled.post_training_step.__code__)
    contender.check(count)
    state.step = STEP
    return contender


def hookline_not_due_once_frozen(count: int) -> Contender:
    """The same after a background plugin was given its view of the state, which must not make the state slower."""
    contender = hookline_not_due(count)
    contender.names["state"].frozen()
    return contender


def hookline_not_implemented(count: int) -> Contender:
    """An event that none of `count` plugins implements, after all were called in another."""
    contender = _emit_to(Elsewhere, count, TrainerState(step=STEP), Elsewhere.on_epoch_end.__code__)
    replace(contender, call="emit.on_epoch_end(state=state)").check(count)
    return contender


def _emit_to(plugin: type, count: int, state: TrainerState, body: CodeType) -> Contender:
    manager = PluginManager()
    for _ in range(count):
        manager.register(plugin())
    names = {"emit": manager.emit, "state": state, "report_data": REPORT_DATA}
    return Contender("emit.post_training_step(state=state, report_data=report_data)", names, body)


def pluggy_hook(count: int) -> Contender:
    manager = pluggy.PluginManager(PROJECT_NAME)
    for phase in PHASES:
        manager.add_hookspecs(phase)
    for _ in range(count):
        manager.register(Plain())
    names = {"hook": manager.hook, "state": TrainerState(step=STEP), "report_data": REPORT_DATA}
    call = "hook.post_training_step(state=state, report_data=report_data)"
    return Contender(call, names, Plain.post_training_step.__code__)


def stable_baselines3(count: int) -> Contender:
    from stable_baselines3.common.callbacks import CallbackList

    empty, model = _stable_baselines3_parts()
    callbacks = CallbackList([empty() for _ in range(count)])
    callbacks.init_callback(model)
    return Contender("callbacks.on_step()", {"callbacks": callbacks}, empty._on_step.__code__)


@cache  # for the class to be one and the same at every count
def _stable_baselines3_parts() -> tuple[Any, Any]:
    from stable_baselines3 import A2C
    from stable_baselines3.common.callbacks import BaseCallback

    class Empty(BaseCallback):
        def _on_step(self) -> bool:
            return True

    return Empty, A2C("MlpPolicy", "CartPole-v1", device="cpu")


def transformers(count: int) -> Contender:
    from transformers import trainer_callback

    # It warns about callbacks of one class, and about the one of its own that we leave out.
    logging.getLogger("transformers.trainer_callback").setLevel(logging.ERROR)
    empty = _transformers_callback()
    new_handler: Any = trainer_callback.CallbackHandler
    # It hands on the model and what else it is made with, and never looks into them.
    handler = new_handler([empty() for _ in range(count)], None, None, None, None)
    names = {
        "handler": handler,
        "args": None,
        "state": trainer_callback.TrainerState(),
        "control": trainer_callback.TrainerControl(),
    }
    return Contender("handler.on_step_end(args, state, control)", names, empty.on_step_end.__code__)


@cache
def _transformers_callback() -> Any:
    from transformers.trainer_callback import TrainerCallback

    class Empty(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pass

    return Empty


def lightning(count: int) -> Contender:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.trainer.call import _call_callback_hooks

    class Empty(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            pass

    os.environ["HOOKLINE_DISABLE_LIGHTNING"] = "1"  # these callbacks and no other
    # A trainer tells at length what hardware it has found. The log of its callbacks stays as it is.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    trainer = Trainer(
        callbacks=[type(f"Empty{index}", (Empty,), {})() for index in range(count)],  # it allows one of each class
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.strategy.connect(LightningModule())
    names = {"call_callbacks": _call_callback_hooks, "trainer": trainer, "outputs": None, "batch": None, "index": 1}
    call = "call_callbacks(trainer, 'on_train_batch_end', outputs, batch, index)"
    return Contender(call, names, Empty.on_train_batch_end.__code__)


NOTHING_DUE: Final[Mapping[str, Callable[[int], Contender]]] = {
    "not due": hookline_not_due,
    "not due, state once frozen": hookline_not_due_once_frozen,
    "not implemented": hookline_not_implemented,
}
"""The ways in which an event can have nothing to do."""

CONTENDERS: Final[Mapping[str, Callable[[int], Contender]]] = {
    "pluggy": pluggy_hook,
    "stable-baselines3": stable_baselines3,
    "transformers": transformers,
    "lightning": lightning,
}
"""By distribution. Building one raises ImportError where that is not installed."""
