"""A checkpoint that becomes an artifact of wandb is evaluated elsewhere with the artifact's address."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline.session import open_session

pytest.importorskip("hookline_wandb")

SETTINGS = """
disable = ["status", "mlflow", "tensorboard", "trackio"]
[plugins.checkpoint]
every = 1
wandb_every = 1
[plugins.evaluation]
mode = "remote"
url = "{url}"
every = 1
[plugins.metrics]
system_every = 0
progress = "off"
[plugins.wandb]
mode = "offline"
"""


class Evaluator(BaseHTTPRequestHandler):
    """An evaluation server that is done at once, and remembers what it was asked for."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._reply(202, {"state": "running"})

    def do_GET(self) -> None:
        self._reply(200, {"state": "done", "result": {"scores": {"eval/score": 1.0}, "records": []}})

    def _reply(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def evaluator() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The server's address, and the requests that it got."""
    asked: list[dict[str, Any]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Evaluator,), {"asked": asked})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


class Policy:
    def __init__(self) -> None:
        self.weight = numpy.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.weight = saved["weight"]


def test_a_remote_evaluation_is_told_the_address_of_the_checkpoints_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluator: tuple[str, list[dict[str, Any]]]
) -> None:
    url, asked = evaluator
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOOKLINE_DISABLE")
    for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "wandb-files"))
    Path("hookline.toml").write_text(SETTINGS.format(url=url))
    with open_session("run", policy=Policy()) as session:
        while "wandb_run" not in session.state.shared["metrics"]:  # wandb is started on a thread of its own
            time.sleep(0.01)
        for epoch in session.epochs():
            session.begin_step()
            session.end_step({"train/loss": 1.0})
            # A checkpoint is announced without an address when the next is durable before its upload is done.
            time.sleep(0.05 * epoch)
            if any(request["uri"] for request in asked):
                session.state.stop_reason = "an evaluation was told an address"
    told = [request for request in asked if request["uri"] is not None]
    assert told
    for request in told:
        assert request["uri"].startswith("wandb://hookline/")
        assert request["uri"].endswith(f"-checkpoint:{Path(request['path']).name}")
