"""The evaluation server: which callers and checkpoints it accepts, and its responses."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.jobs import EvaluationOutcome
from hookline_evaluation.out_of_process.server import MAX_BODY, EvaluationServer
from hookline_hookspecs import EvaluationRequest

TOKEN = "a-secret-that-stays-secret"
Serve = Callable[..., httpx.Client]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server for the checkpoints in `tmp_path/root`; returns a client with its token."""
    running: list[tuple[EvaluationServer, threading.Thread, httpx.Client]] = []

    def start(token: str | None = TOKEN, timeout_seconds: float = 60.0) -> httpx.Client:
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        server = EvaluationServer("127.0.0.1", 0, root=root, token=token, timeout_seconds=timeout_seconds)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", headers=headers, timeout=30)
        running.append((server, thread, client))
        return client

    yield start
    for server, thread, client in running:
        client.close()
        server.shutdown()
        thread.join()
        server.close()


def outcome(client: httpx.Client, own_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 500
    while True:
        reply = client.get(f"/evaluations/{own_id}").json()
        if reply.get("state") != "running":
            return reply
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer \xe9"])
def test_only_who_has_the_token_is_answered(serve: Serve, authorization: str | None) -> None:
    client = serve()
    client.headers.pop("Authorization")
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    for reply in (client.get("/evaluations/x", headers=headers), client.post("/evaluations", headers=headers, json={})):
        assert reply.status_code == 401
        assert reply.json() == {"error": "the token is missing or wrong"}


def test_without_a_token_only_this_machine_is_served(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(
            EvaluationError, match=f"a server on {host} can be reached from other machines: set a token"
        ):
            EvaluationServer(host, 0, root=tmp_path, token=None, timeout_seconds=1)


def test_without_a_token_a_name_that_only_points_to_this_machine_will_not_do(serve: Serve) -> None:
    client = serve(token=None)
    assert client.get("/evaluations/x").status_code == 404
    assert client.get("/evaluations/x", headers={"Host": "localhost:80"}).status_code == 404
    reply = client.get("/evaluations/x", headers={"Host": "attacker.example"})
    assert (reply.status_code, reply.json()["error"]) == (
        403,
        "this server has no token and serves its own machine only",
    )


def test_what_a_page_in_a_browser_could_send_is_refused(serve: Serve) -> None:
    reply = serve(token=None).post("/evaluations", content=b"{}", headers={"Content-Type": "text/plain"})
    assert reply.status_code == 415


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body must be an object with an id"),
        ({"id": "../../etc"}, "the body must be an object with an id"),
        (
            {"id": "a", "request": {"n_exmaples": 3}},
            "a request has no key 'n_exmaples'; its keys are greedy, held_out, kind",
        ),
        ({"id": "a", "request": {"held_out": "no"}}, "held_out must be true or false, got 'no'"),
        ({"id": "a", "request": {"n_examples": 10**9}}, "n_examples must be 1 to 1000000, got 1000000000"),
        ({"id": "a", "request": {"n_examples": True}}, "n_examples must be 1 to 1000000, got True"),
        ({"id": "a", "request": {"kind": "huge"}}, "kind must be 'micro' or 'full', got 'huge'"),
        ({"id": "a", "request": {"lessons": "addition"}}, "lessons must be a list of names, got 'addition'"),
        ({"id": "a", "request": 3}, "a request must be an object, not 3"),
        ({"id": "a", "request": {"pass_at": [0]}}, "pass_at must be numbers of 1 to 1, got [0]"),
        (
            {"id": "a", "request": {"samples_per_problem": 4, "pass_at": [5]}},
            "pass_at must be numbers of 1 to 4, got [5]",
        ),
    ],
)
def test_a_call_that_makes_no_sense_is_told_why(serve: Serve, body: Any, message: str) -> None:
    reply = serve().post("/evaluations", json=body)
    assert reply.status_code == 422
    assert message in reply.json()["error"]


def test_a_body_that_is_too_long_or_no_json_is_not_read(serve: Serve) -> None:
    client = serve()
    headers = {"Content-Type": "application/json"}
    assert client.post("/evaluations", content=b" " * (MAX_BODY + 1), headers=headers).status_code == 413
    assert client.post("/evaluations", content=b"{", headers=headers).status_code == 400
    assert client.post("/evaluations", content=b"[" * 100_000, headers=headers).status_code == 400
    assert client.post("/elsewhere", json={}).status_code == 404
    assert client.get("/").status_code == 404


def call(client: httpx.Client, *lines: bytes, body: bytes = b"") -> tuple[int, Any]:
    """The status and content of the answer to a call that no HTTP library would make."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=500) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", b""]) + body)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as reader:
            head, _, content = reader.read().partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


POST = (b"POST /evaluations HTTP/1.1", b"Content-Type: application/json", f"Authorization: Bearer {TOKEN}".encode())


@pytest.mark.parametrize(
    ("lines", "body", "status"),
    [
        ((*POST,), b"{}", 413),
        ((*POST, b"Content-Length: -5"), b"{}", 413),
        ((*POST, b"Content-Length: two"), b"{}", 413),
        ((*POST, b"Content-Length: " + b"9" * 5000), b"{}", 413),
        ((*POST, b"Content-Length: 500"), b"{}", 400),
        ((*POST, b"Content-Length: 3"), b'"\xff"', 400),
        ((*POST, b"Content-Length: 5003"), b"9" * 5003, 400),
        ((b"PUT /evaluations HTTP/1.1",), b"", 501),
        ((b"GET /evaluations/x HTTP/1.1", b"Host: ["), b"", 401),
        ((b"GET /evaluations/" + b"x" * 70_000 + b" HTTP/1.1",), b"", 414),
        ((b"GET /evaluations/x",), b"", 401),
        ((b"\x16\x03\x01 garbage",), b"", 400),
        ((b"GET / HTTP/1.1", *(b"X-%d: y" % n for n in range(200))), b"", 431),
    ],
)
def test_a_malformed_call_is_refused_in_json_with_one_line_of_log(
    serve: Serve,
    lines: tuple[bytes, ...],
    body: bytes,
    status: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO, "hookline")
    client = serve()
    answer, content = call(client, *lines, body=body)
    assert (answer, list(content)) == (status, ["error"])
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "Traceback" not in capfd.readouterr().err
    assert client.get("/evaluations/x").status_code == 404, "the server goes on"


@pytest.mark.parametrize(
    "place",
    [
        {"uri": "file://["},
        {"path": "\ud800"},
        {"path": "a" * 5000},
        {"path": "~"},
        {"uri": "file:///%00"},
        {"path": "loop"},
    ],
)
def test_a_place_that_no_checkpoint_can_have_is_refused(
    serve: Serve, tmp_path: Path, place: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    client = serve()
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root" / "loop")
    if place == {"path": "loop"}:
        place = {"path": str(tmp_path / "root" / "loop")}
    body = json.dumps({"id": "a", **place})
    reply = client.post("/evaluations", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 403
    assert "Traceback" not in capfd.readouterr().err


def test_without_a_token_a_host_that_cannot_be_read_is_refused(serve: Serve) -> None:
    assert call(serve(token=None), b"GET /evaluations/x HTTP/1.1", b"Host: [")[0] == 403


def test_a_caller_that_goes_away_is_one_line_of_log(serve: Serve, caplog: pytest.LogCaptureFixture, capfd) -> None:
    caplog.set_level(logging.INFO, "hookline")
    client = serve()
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(b"\r\n".join([*POST, b"Content-Length: 500", b"", b"{"]))
        # Closed with a reset rather than an end, as by a process that is killed.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + 500
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == [
        "127.0.0.1 got no response: ConnectionResetError: [Errno 104] Connection reset by peer"
    ]
    assert "Traceback" not in capfd.readouterr().err
    assert client.get("/evaluations/x").status_code == 404


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
REQUEST = st.dictionaries(st.sampled_from([own.name for own in fields(EvaluationRequest)]), JSON)
BODY = st.fixed_dictionaries(
    {"id": st.just("a") | JSON}, optional={"path": JSON, "uri": JSON, "request": REQUEST | JSON}
)


def test_whatever_is_posted_is_refused_with_a_reason(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    client = serve()

    @settings(deadline=None)
    @given(BODY | JSON | st.binary(max_size=100))
    def post(body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = client.post("/evaluations", content=content, headers={"Content-Type": "application/json"})
        assert reply.status_code in (400, 403, 422)
        assert reply.json()["error"]

    post()
    assert capfd.readouterr().err == ""


@settings(deadline=None)
@given(JSON | st.fixed_dictionaries({"scores": st.dictionaries(st.text(max_size=8), JSON), "records": st.lists(JSON)}))
def test_an_answer_has_finite_scores_or_is_refused(data: Any) -> None:
    try:
        answer = EvaluationOutcome.from_json(data)
    except EvaluationError as error:
        assert "of an evaluation" in str(error)
    else:
        assert all(math.isfinite(value) for value in answer.scores.values())
        json.dumps(answer.to_json(), allow_nan=False)


def test_nothing_outside_of_the_root_folder_is_evaluated(serve: Serve, tmp_path: Path, endless: Path) -> None:
    client = serve()
    outside = tmp_path / "outside"
    (outside / "checkpoint").mkdir(parents=True)
    (outside / "config.json").write_text("{}")
    (outside / "checkpoint" / "policy.safetensors").touch()
    (tmp_path / "root" / "link").symlink_to(outside)
    # One in the root folder whose run is not.
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "root" / "stray").mkdir()
    (tmp_path / "root" / "stray" / "policy.safetensors").touch()
    for path in (
        str(outside / "checkpoint"),
        str(tmp_path / "root" / ".." / "outside" / "checkpoint"),
        str(tmp_path / "root" / "link" / "checkpoint"),
        str(tmp_path / "root" / "stray"),
        str(tmp_path / "root" / "nowhere"),
        "",
        "\0",
        None,
        7,
    ):
        reply = client.post("/evaluations", json={"id": "a", "path": path})
        assert reply.status_code == 403, path
        assert "no such checkpoint in the server's root folder" in reply.json()["error"]
    for uri in (f"file://{outside}/checkpoint", "s3://bucket/x"):
        assert client.post("/evaluations", json={"id": "a", "uri": uri}).status_code == 403


def test_one_evaluation_at_a_time_and_each_begins_once(serve: Serve, endless: Path, run_dir: Path) -> None:
    client = serve()
    first = client.post("/evaluations", json={"id": "first", "path": str(run_dir)})
    assert (first.status_code, first.json()) == (202, {"state": "running"})
    again = client.post("/evaluations", json={"id": "first", "uri": f"file://{run_dir}"})
    assert (again.status_code, again.json()) == (202, {"state": "running"})
    second = client.post("/evaluations", json={"id": "second", "path": str(run_dir)})
    assert second.status_code == 409
    assert second.headers["Retry-After"] == "1"
    assert client.get("/evaluations/second").status_code == 404


def test_an_evaluation_that_takes_too_long_makes_room_for_the_next(serve: Serve, endless: Path, run_dir: Path) -> None:
    client = serve(timeout_seconds=0.2)
    client.post("/evaluations", json={"id": "first", "path": str(run_dir)})
    reply = outcome(client, "first")
    assert reply["state"] == "failed"
    assert "took more than 0.2 s" in reply["error"]
    assert client.post("/evaluations", json={"id": "second", "path": str(run_dir)}).status_code == 202


def test_a_failure_is_told_without_secrets(
    serve: Serve, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HOOKLINE_EVALUATION_TOKEN", TOKEN)
    folder = run_dir / "checkpoints" / TOKEN
    folder.mkdir(parents=True)
    (folder / "policy.safetensors").touch()
    client = serve()
    client.post("/evaluations", json={"id": "first", "path": str(folder)})
    (folder / "policy.safetensors").unlink()
    reply = outcome(client, "first")
    assert reply["state"] == "failed"
    assert TOKEN not in json.dumps(reply)
    client.get("/evaluations/x", headers={"Authorization": "Bearer wrong"})
    assert f"Bearer {TOKEN}" not in caplog.text


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hookline", "evaluate", *arguments]


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    environ = {**os.environ, "HOOKLINE_EVALUATION_TOKEN": TOKEN}
    with subprocess.Popen(
        command("--serve", "--port", "0", "--root", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"at (http://127\.0\.0\.1:\d+)$", line.strip())
        assert address is not None, line
        assert f"evaluating checkpoints in {tmp_path} for callers with the token" in line
        assert httpx.get(f"{address[1]}/evaluations/x").status_code == 401
        known = httpx.get(f"{address[1]}/evaluations/x", headers={"Authorization": f"Bearer {TOKEN}"})
        assert known.status_code == 404
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors
        assert TOKEN not in line + out + errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to evaluate: use hookline evaluate RUN, or hookline evaluate --serve"),
        (("nowhere",), "there is no folder nowhere: give the folder of a run or of one of its checkpoints"),
        (("--serve", "--host", "0.0.0.0"), "a server on 0.0.0.0 can be reached from other machines: set a token"),
        (("--serve", "--root", "nowhere"), "--root: there is no folder nowhere"),
        (("x", "--samples-per-problem", "4"), "all samples of a problem would be the same"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOOKLINE_EVALUATION_TOKEN", raising=False)
    done = subprocess.run(command(*arguments), capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
