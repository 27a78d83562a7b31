"""What is there before training is no concern of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hookline import PluginManager, hookimpl
from hookline.training.long_lived import long_lived_left_out
from hookline.training.tasks.addition import addition
from hookline_hookspecs import TrainerState


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_from_the_second_epoch_on_the_collector_leaves_alone_what_was_there_and_in_the_end_it_does_not() -> None:
    frozen: list[int] = []

    class Watcher:
        @hookimpl
        def on_epoch_start(self) -> None:
            frozen.append(gc.get_freeze_count())

    plugins = PluginManager()
    plugins.register(Watcher())
    addition.trainer(plugins, epochs=3).train()
    assert frozen[0] == 0
    assert frozen[1] > 10_000
    assert gc.get_freeze_count() == 0


def test_a_run_that_fails_gives_the_collector_everything_back() -> None:
    class StopsAtTheSecondEpoch:
        critical = True

        @hookimpl
        def on_epoch_start(self, state: TrainerState) -> None:
            if state.epoch == 1:
                assert gc.get_freeze_count() > 0
                raise KeyError

    plugins = PluginManager()
    plugins.register(StopsAtTheSecondEpoch())
    with pytest.raises(KeyError):
        addition.trainer(plugins, epochs=3).train()
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_has_frozen_stays_so() -> None:
    gc.freeze()
    with long_lived_left_out() as leave_out:
        leave_out()
    assert gc.get_freeze_count() > 0
