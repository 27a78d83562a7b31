"""SIGKILL in the middle of saves: a valid checkpoint is always left, and never one mixed of two."""

import random
import subprocess
import sys
import time
from pathlib import Path

from hookline_checkpoint.store import newest_valid

KILLS = 12

SAVE_WITHOUT_END = """
import sys
from pathlib import Path
import numpy
from hookline_checkpoint.store import Contents, newest_valid, prune, write_checkpoint

folder = Path(sys.argv[1])
found, _ = newest_valid(folder)
epoch = found[1].epoch if found else 0
print("ready", flush=True)
while True:
    # Every other epoch is saved twice, so that kills also meet a checkpoint that is being replaced.
    for epoch in (epoch + 1, epoch + 2, epoch + 2):
        array = numpy.full(50_000, epoch)
        path, _ = write_checkpoint(folder, Contents(epoch=epoch, policy={"w": array}, optimizer={"m": array}))
        prune(path, keep_last=1)
"""


def test_a_kill_at_any_moment_leaves_a_valid_checkpoint(tmp_path: Path) -> None:
    delays = random.Random(0)
    last = 0
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", SAVE_WITHOUT_END, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child, child.stdout:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(delays.uniform(0.02, 0.1))
            child.kill()
        found, skipped = newest_valid(tmp_path)
        assert not skipped
        if found is None:
            assert last == 0, "there was a valid checkpoint, and now there is none"
            continue
        epoch = found[1].epoch
        assert epoch >= last
        assert (found[1].policy["w"] == epoch).all()
        assert (found[1].optimizer["m"] == epoch).all()
        last = epoch
    assert last > KILLS, "the children were killed before they had saved anything"
