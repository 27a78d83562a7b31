"""Saving while training goes on: a checkpoint has the state at the time of the save."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline_checkpoint import CheckpointError
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.reading import read_checkpoint
from hookline_checkpoint.retention import Keep
from hookline_checkpoint.saver import Saver


def test_weights_that_change_while_they_are_written_are_saved_as_they_were(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    saver = Saver(tmp_path, Keep())
    weights, moments = numpy.zeros(100_000), {"step": numpy.array(7), "m": numpy.zeros(100_000)}
    plugins: dict[str, Any] = {"a": {"list": [1, 2, 3]}}
    saver.start(Contents(epoch=1, policy={"w": weights}, optimizer=moments, plugins=plugins))
    weights += 1
    moments["m"] -= 1
    moments["step"][...] = 8
    plugins["a"]["list"].append(4)
    slow_disk.set()
    record = saver.finish(wait=True)
    assert record is not None
    assert record.path is not None
    back = read_checkpoint(record.path).contents
    assert (back.policy["w"] == 0).all()
    assert (back.optimizer["m"] == 0).all()
    assert back.optimizer["step"] == 7
    assert back.plugins == {"a": {"list": [1, 2, 3]}}


def test_one_that_is_not_durable_yet_is_not_told(tmp_path: Path, slow_disk: threading.Event) -> None:
    saver = Saver(tmp_path, Keep())
    saver.start(Contents(epoch=1))
    assert saver.is_writing
    assert saver.finish() is None
    slow_disk.set()
    while saver.is_writing:
        time.sleep(0.001)
    assert saver.is_busy
    record = saver.finish()
    assert record is not None
    assert record.epoch == 1
    assert not saver.is_busy
    assert saver.finish() is None


def test_one_after_the_other_is_what_it_was_when_it_was_taken(tmp_path: Path) -> None:
    saver = Saver(tmp_path, Keep(last=20))
    for epoch in range(1, 11):
        size = 1000 * epoch if epoch < 6 else 100  # the memory grows, and is later more than enough
        saver.start(Contents(epoch=epoch, policy={"w": numpy.full(size, epoch)}))
        saver.finish(wait=True)
    for epoch in range(1, 11):
        assert set(read_checkpoint(tmp_path / f"epoch-{epoch:06d}").contents.policy["w"].tolist()) == {epoch}


def test_a_failed_write_is_raised_where_it_is_looked_for_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(tmp_path, Keep())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        saver.start(Contents(epoch=1))
        with pytest.raises(CheckpointError, match="epoch-000001 cannot be saved: .*No space left"):
            saver.finish(wait=True)
    assert not saver.is_busy
    saver.start(Contents(epoch=2))
    assert saver.finish(wait=True) is not None


def test_a_write_that_does_less_than_it_was_asked_for_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:1000]))
    saver = Saver(tmp_path, Keep())
    saver.start(Contents(epoch=1, policy={"w": numpy.arange(5_000)}))
    record = saver.finish(wait=True)
    assert record is not None
    assert record.path is not None
    assert (read_checkpoint(record.path).contents.policy["w"] == numpy.arange(5_000)).all()
