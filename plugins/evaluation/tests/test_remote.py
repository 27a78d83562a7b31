"""Evaluations by a server that answers as the test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import EventRecorder
from hookline_evaluation import Evaluation
from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process import client
from hookline_evaluation.out_of_process.client import RemoteEvaluation
from hookline_evaluation.out_of_process.jobs import EvaluationJob
from hookline_hookspecs import CheckpointRecord, EvaluationRequest, ReplayRecord, TrainerState

TOKEN = "a-secret-that-stays-secret"
DONE = {
    "state": "done",
    "result": {
        "scores": {"eval/addition/success_rate": 0.75},
        "records": [{"lesson": "addition", "reward": 1.0, "prompt": "2+3=", "response": "5"}],
    },
}
Reply = tuple[int, Any]


class Server(ThreadingHTTPServer):
    """Sends its replies in turn, repeats the last one, and records the calls."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.replies: list[Reply] = [(200, DONE)]
        self.calls: list[tuple[str, str, Any, str | None]] = []
        self.is_hanging = threading.Event()
        self.hang = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self._reply()

    def do_GET(self) -> None:
        self._reply()

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        own = json.loads(body) if body else None
        self.server.calls.append((self.command, self.path, own, self.headers.get("Authorization")))
        status, content = self.server.replies.pop(0) if len(self.server.replies) > 1 else self.server.replies[0]
        if content == "hang":
            self.server.is_hanging.set()
            self.server.hang.wait(60)
            return
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.hang.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLINE_EVALUATION_TOKEN", TOKEN)


def evaluate(server: Server, timeout: float = 60.0, request: EvaluationRequest | None = None) -> RemoteEvaluation:
    job = EvaluationJob(
        Path("/runs/one/checkpoints/epoch-000004"), 4, 16, "s3://bucket/one", request or EvaluationRequest()
    )
    evaluation = RemoteEvaluation(job, server.url + "/", timeout, poll_seconds=0.01)
    assert evaluation.wait(90)
    return evaluation


def test_the_checkpoint_and_the_request_are_posted_and_the_result_polled_for(server: Server) -> None:
    server.replies = [
        (202, {"state": "running"}),
        (200, {"state": "running"}),
        (200, {"state": "running"}),
        (200, DONE),
    ]
    answer = evaluate(server, request=EvaluationRequest(n_examples=8, lessons=("addition",))).outcome()
    assert answer.scores == {"eval/addition/success_rate": 0.75}
    assert answer.records == DONE["result"]["records"]
    (method, path, told, authorization), *polls = server.calls
    assert (method, path, authorization) == ("POST", "/evaluations", f"Bearer {TOKEN}")
    assert (told["path"], told["uri"]) == ("/runs/one/checkpoints/epoch-000004", "s3://bucket/one")
    assert (told["request"]["n_examples"], told["request"]["lessons"]) == (8, ["addition"])
    assert [(method, path) for method, path, *_ in polls] == [("GET", f"/evaluations/{told['id']}")] * 3


def test_a_server_that_is_busy_or_unwell_is_asked_again_for_the_same_evaluation(server: Server) -> None:
    server.replies = [(503, {}), (409, {}), (202, {"state": "running"}), (500, {}), (200, DONE)]
    assert evaluate(server).outcome().scores
    posted = [told["id"] for method, _, told, _ in server.calls if method == "POST"]
    assert len(posted) == 3
    assert len(set(posted)) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, {"error": "wrong"}), "status 401"),
        ((302, {}), "status 302"),
        ((200, b"<html>"), "the response is not JSON"),
        ((200, [1]), "which is not an object"),
        ((200, {"state": "failed", "error": "no such lesson"}), "could not evaluate .*: no such lesson"),
        ((200, {"state": "done", "result": {"scores": [1.0]}}), "has no scores by name"),
        (
            (200, {"state": "done", "result": {"scores": {"x": "high"}}}),
            "since 'x' is 'high': a score must be a finite",
        ),
        ((200, {"state": "done", "result": {"scores": {"x": None}}}), "since 'x' is None: a score must be a finite"),
        ((200, b'{"state": "done", "result": {"scores": {"x": 1e999}}}'), "since 'x' is inf: a score must be"),
        ((200, b'{"state": "done", "result": {"scores": {"x": NaN}}}'), "since 'x' is nan: a score must be"),
        ((200, {"state": "done", "result": {"scores": {"x": 10**400}}}), "since 'x' is 1000.*: a score must be"),
        ((200, {"state": "done", "result": {"scores": {}, "records": [{"lesson": []}]}}), "are not a list of episodes"),
        ((200, {"state": "done", "result": {"scores": {}, "records": ["x"]}}), "are not a list of episodes"),
    ],
)
def test_what_is_no_result_is_an_error_at_once(server: Server, reply: Reply, message: str) -> None:
    server.replies = [reply]
    with pytest.raises(EvaluationError, match=message) as raised:
        evaluate(server).outcome()
    assert TOKEN not in str(raised.value)
    assert all(path != "/elsewhere" for _, path, *_ in server.calls)


def test_a_server_that_hangs_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CALL_SECONDS", 0.1)
    server.replies = [(202, {"state": "running"}), (200, "hang")]
    with pytest.raises(EvaluationError, match="no complete response within 0.1 s|gave no result"):
        evaluate(server, timeout=1.0).outcome()


def test_a_server_that_is_never_done_is_given_up(server: Server) -> None:
    server.replies = [(200, {"state": "running"})]
    with pytest.raises(EvaluationError, match=f"{server.url}.* gave no result for .*epoch-000004 within 0.3 s"):
        evaluate(server, timeout=0.3).outcome()


def test_no_server_at_all_is_an_error_that_names_it(server: Server) -> None:
    job = EvaluationJob(Path("/runs/one/checkpoints/epoch-000004"))
    evaluation = RemoteEvaluation(job, "http://127.0.0.1:1", 3.0)
    assert evaluation.wait(500)
    with pytest.raises(EvaluationError, match=r"by http://127.0.0.1:1 failed: ConnectError"):
        evaluation.outcome()


def test_a_token_that_breaks_out_of_its_header_is_not_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLINE_EVALUATION_TOKEN", "a\r\nX-Other: b")
    with pytest.raises(EvaluationError, match="HOOKLINE_EVALUATION_TOKEN has a space, a control character"):
        evaluate(server).outcome()
    assert server.calls == []


def test_late_scores_belong_to_the_epoch_of_their_checkpoint(
    server: Server,
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Callable[..., TrainerState],
    run_dir: Path,
) -> None:
    evaluation(mode="remote", url=server.url)
    state = hookline_state(epoch=10, step=40, run_dir=run_dir)
    hookline_manager.emit.on_epoch_end(state=state)
    checkpoint = CheckpointRecord(run_dir / "checkpoints" / "epoch-000010", epoch=10, step=40)
    hookline_manager.emit.on_checkpoint_saved(state=state, checkpoint=checkpoint)
    state.epoch, state.step = 14, 56
    deadline = time.monotonic() + 500
    while not state.eval_scores and time.monotonic() < deadline:
        hookline_manager.emit.on_epoch_start(state=state)
    assert state.eval_scores == {"eval/addition/success_rate": 0.75, "eval/epoch": 10.0, "eval/step": 40.0}
    assert (state.shared["evaluation"]["epoch"], state.shared["evaluation"]["step"]) == (10, 40)
    (saved,) = hookline_events.of("on_replay_saved")
    path = run_dir / "replays" / "epoch-000010.jsonl"
    assert saved.arguments["replay"] == ReplayRecord(path=path, lesson_id="addition", episodes=1, step=40)
    assert json.loads(path.read_text())["epoch"] == 10


def test_the_last_checkpoint_is_evaluated_before_the_run_is_over(
    server: Server,
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Callable[..., TrainerState],
    run_dir: Path,
) -> None:
    evaluation(mode="remote", url=server.url)
    state = hookline_state(epoch=3, step=12, run_dir=run_dir)
    hookline_manager.emit.on_training_complete(state=state)
    assert server.calls == []
    checkpoint = CheckpointRecord(run_dir / "checkpoints" / "epoch-000003", epoch=3, step=12)
    hookline_manager.emit.on_checkpoint_saved(state=state, checkpoint=checkpoint)
    assert state.eval_scores["eval/epoch"] == 3.0


def test_a_last_checkpoint_that_was_saved_before_the_end_is_evaluated_once(
    server: Server,
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Callable[..., TrainerState],
    run_dir: Path,
) -> None:
    evaluation(mode="remote", url=server.url)
    state = hookline_state(epoch=3, step=12, run_dir=run_dir)
    checkpoint = CheckpointRecord(run_dir / "checkpoints" / "epoch-000003", epoch=3, step=12)
    hookline_manager.emit.on_checkpoint_saved(state=state, checkpoint=checkpoint)
    hookline_manager.emit.on_training_complete(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert state.eval_scores["eval/epoch"] == 3.0
    assert [method for method, *_ in server.calls].count("POST") == 1


def test_a_hanging_server_does_not_keep_a_run_from_its_end(
    server: Server,
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Callable[..., TrainerState],
    run_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.replies = [(200, "hang")]
    evaluation(mode="remote", url=server.url, deadline_seconds=0.2)
    state = hookline_state(epoch=3, step=12, run_dir=run_dir)
    checkpoint = CheckpointRecord(run_dir / "checkpoints" / "epoch-000003", epoch=3, step=12)
    hookline_manager.emit.on_checkpoint_saved(state=state, checkpoint=checkpoint)
    hookline_manager.emit.on_training_complete(state=state)
    assert "did not finish by the end of the run and was stopped" in caplog.text
