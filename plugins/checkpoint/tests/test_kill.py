"""SIGKILL in the middle of saves: a valid checkpoint is always left, and never one mixed of two."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookline_checkpoint.reading import newest_valid

KILLS = 100

KILL_AGAIN_AND_AGAIN = """
import os, random, signal, sys, time
from pathlib import Path
import numpy
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.reading import newest_valid
from hookline_checkpoint.retention import Keep
from hookline_checkpoint.saver import Saver

folder = Path(sys.argv[1])

def save_without_end(tell):
    found, _ = newest_valid(folder)
    epoch = found.contents.epoch if found else 0
    saver = Saver(folder, Keep(last=1))
    array = numpy.empty(50_000)
    while True:
        # Every other epoch is saved twice, so that kills also meet a checkpoint that is being replaced.
        for epoch in (epoch + 1, epoch + 2, epoch + 2):
            array[:] = epoch
            saver.start(Contents(epoch=epoch, policy={"w": array}, optimizer={"m": array}))
            array[:] = -1  # training goes on while the checkpoint is written
            saver.finish(wait=True)
            os.write(tell, b"x")

# A process that has imported all it needs, and is copied for each life: starting from nothing would take far longer.
rng = random.Random(0)
told, tell = os.pipe()
for _ in sys.stdin:
    child = os.fork()
    if not child:
        save_without_end(tell)
    began = time.monotonic()
    os.read(told, 1)
    # Some three saves from now, however long one takes here.
    time.sleep(rng.uniform(0, 3) * min(time.monotonic() - began, 0.5))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.set_blocking(told, False)
    try:
        os.read(told, 1_000_000)
    except BlockingIOError:
        pass
    os.set_blocking(told, True)
    print("killed", flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that can be: a killed process takes no file system with it, and a disk makes saves slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def test_a_kill_at_any_moment_leaves_a_valid_checkpoint(folder: Path) -> None:
    last = 0
    in_the_middle = 0
    command = [sys.executable, "-c", KILL_AGAIN_AND_AGAIN, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for _ in range(KILLS):
            killer.stdin.write("\n")
            killer.stdin.flush()
            assert killer.stdout.readline() == "killed\n"
            in_the_middle += any(path.name.startswith(".") for path in folder.iterdir())
            found, skipped = newest_valid(folder)
            assert not skipped
            if found is None:
                assert last == 0, "there was a valid checkpoint, and now there is none"
                continue
            contents = found.contents
            assert contents.epoch >= last
            assert (contents.policy["w"] == contents.epoch).all()
            assert (contents.optimizer["m"] == contents.epoch).all()
            last = contents.epoch
        killer.stdin.close()
    assert last >= KILLS
    assert in_the_middle > 10, "the kills did not meet a save"
