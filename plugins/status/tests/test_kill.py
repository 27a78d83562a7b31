"""SIGKILL with a full spool: at the next start everything arrives in order, and repeated messages have the same key."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNT = 300

TRAIN = """
import sys
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState
from hookline_status import Options, Status

url, folder, first, end = sys.argv[1:]
state = TrainerState(run_id="mine", run_dir=Path(folder))
with PluginManager(drain_seconds=60) as manager:
    manager.register(Status(Options(endpoint=url)))
    manager.emit.on_new_training_run(state=state)
    manager.drain()
    for step in range(int(first), int(first) + 300):
        manager.emit.log_metrics(report_data={"train/loss": 1 / (1 + step)}, step=step)
    if end == "failure":
        manager.emit.on_training_failed(state=state, error=MemoryError("no room"))
    else:
        manager.emit.on_training_complete(state=state)
"""


def train(url: str, folder: Path, first: int, end: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TRAIN, url, str(folder), str(first), end])


def spooled(folder: Path) -> list[str]:
    try:
        database = sqlite3.connect(f"file:{folder / 'status-spool.sqlite'}?mode=ro", uri=True)
    except sqlite3.Error:
        return []
    try:
        return [body for (body,) in database.execute("SELECT body FROM messages ORDER BY id")]
    except sqlite3.Error:
        return []  # it is being made
    finally:
        database.close()


def test_a_kill_loses_nothing_that_was_spooled(
    server: Any, tmp_path: Path, until: Callable[[Callable[[], object]], None]
) -> None:
    turnstile = threading.Semaphore(0)
    server.always = lambda handler: turnstile.acquire(timeout=60) and handler.accept()
    with train(server.url, tmp_path, 0, "failure") as child:
        until(lambda: spooled(tmp_path) and '"FAILURE"' in spooled(tmp_path)[-1])
        turnstile.release(20)
        until(lambda: len(server.requests) > 20)
        child.kill()
    assert len(spooled(tmp_path)) >= COUNT - 20
    turnstile.release(1000)  # also takes what was under way at the kill
    until(lambda: len(server.accepted) == len(server.requests))
    with train(server.url, tmp_path, COUNT, "success") as child:
        assert child.wait(500) == 0
    assert spooled(tmp_path) == []

    by_key: dict[str, dict[str, Any]] = {}
    for request in server.accepted:
        assert by_key.setdefault(request.key, request.body) == request.body
    assert len(server.accepted) > len(by_key), "the message that was under way at the kill comes twice"

    told = list(by_key.values())
    assert [body["step"] for body in told if "step" in body] == list(range(2 * COUNT))
    phases = [body["phase"] for body in told if "phase" in body and not body["phase"].endswith("heartbeat")]
    assert phases == ["on_new_training_run", "on_training_failed", "on_new_training_run", "on_training_complete"]
    failure = next(body for body in told if body.get("phase") == "on_training_failed")
    assert failure["data"]["message"] == "MemoryError: no room"
    assert told.index(failure) > max(told.index(body) for body in told if body.get("step") == COUNT - 1)
    assert told[-1]["data"]["status"] == "SUCCESS", "the terminal status comes last"
