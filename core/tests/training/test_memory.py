"""Objects that live as long as a run are excluded from garbage collection, and freed tensors are used again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hookline import PluginManager, hookimpl
from hookline.training.memory import gc_freeze
from hookline.training.tasks.arithmetic import addition
from hookline_hookspecs import TrainerState


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_existing_objects_are_frozen_from_the_second_epoch_to_the_end_of_the_run() -> None:
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


def test_a_run_that_fails_unfreezes_all_objects() -> None:
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


def test_objects_that_were_frozen_before_the_run_stay_frozen() -> None:
    gc.freeze()
    with gc_freeze() as freeze:
        freeze()
    assert gc.get_freeze_count() > 0


HOW_OFTEN_PAGES_ARE_CLEARED = """
import resource, torch
from hookline.training.memory import keep_freed_memory
keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(64 << 18)
before = faults()
for _ in range(10):
    torch.ones(64 << 18)
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_the_memory_of_a_freed_tensor_is_used_again_unless_the_environment_says_otherwise() -> None:
    def faults(**environment: str) -> int:
        own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", HOW_OFTEN_PAGES_ARE_CLEARED]
        return int(subprocess.run(command, env={**own, **environment}, capture_output=True, check=True).stdout)

    assert faults() < 1000
    assert faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 10_000
