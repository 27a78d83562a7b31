"""The client against servers that drip, hang, never end and send elsewhere. A request that hangs fails by its time limit."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookline.http.client import HTTPClient
from hookline.http.requests import RequestError

TOKEN_VARIABLE = "HOOKLINE_TEST_TOKEN"
Behaviour = Callable[[socket.socket, threading.Event], None]


class RawServer:
    """Accepts connections, reads the head of each request, and then does what the test says."""

    def __init__(self, behave: Behaviour, *, reads: bool = True) -> None:
        self.requests: list[bytes] = []
        self.done = threading.Event()
        self._behave = behave
        self._reads = reads
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self._reads:
                self.requests.append(receive(connection))
            self._behave(connection, self.done)

    def close(self) -> None:
        self.done.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


def receive(connection: socket.socket) -> bytes:
    """One whole request. The client sends head and body apart, and they may arrive so."""
    request = connection.recv(65536)
    length = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    body = int(length[1]) if length else 0
    part = request
    while part and len(request.partition(b"\r\n\r\n")[2]) < body:
        part = connection.recv(65536)
        request += part
    return request


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    servers: list[RawServer] = []

    def start(behave: Behaviour, **options: Any) -> RawServer:
        servers.append(RawServer(behave, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def drip(beginning: bytes, each: bytes) -> Behaviour:
    def behave(connection: socket.socket, done: threading.Event) -> None:
        connection.sendall(beginning)
        while not done.wait(0.02):
            connection.sendall(each)

    return behave


def answer(status: str, body: bytes = b"{}", *headers: str) -> Behaviour:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return lambda connection, done: connection.sendall("\r\n".join(lines).encode() + body)


def never(connection: socket.socket, done: threading.Event) -> None:
    done.wait(60)


def ask(url: str, seconds: float = 30.0, content: object = None) -> Any:
    with HTTPClient(url, TOKEN_VARIABLE) as client:
        return client.request_json("POST", content=content, seconds=seconds)


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nx-slow: ", b"x"), id="headers"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b" "), id="body"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"), id="chunks"),
        pytest.param(drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="continue"),
        pytest.param(never, id="nothing"),
    ],
)
def test_the_deadline_is_for_the_whole_request_however_slowly_bytes_come(
    serve: Callable[..., RawServer], behave: Behaviour
) -> None:
    with pytest.raises(RequestError, match=r"no complete response within 0.2 s") as caught:
        ask(serve(behave).url, seconds=0.2)
    assert caught.value.is_transient


def test_a_server_that_does_not_read_is_left_at_the_deadline(serve: Callable[..., RawServer]) -> None:
    with pytest.raises(RequestError, match="no complete response within 0.2 s"):
        ask(serve(never, reads=False).url, seconds=0.2, content="x" * 20_000_000)


def test_a_name_service_that_hangs_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: done.wait(60))
    with pytest.raises(RequestError, match="no complete response within 0.2 s"):
        ask("http://a-name/", seconds=0.2)
    done.set()


def test_each_of_several_threads_has_a_deadline_of_its_own(serve: Callable[..., RawServer]) -> None:
    in_time = threading.Event()

    def behave(connection: socket.socket, done: threading.Event) -> None:
        if b"GET /late" in server.requests[-1] or not in_time.wait(60):
            done.wait(60)
        answer("200 OK", b'"in time"')(connection, done)

    server = serve(behave)
    with HTTPClient(server.url, TOKEN_VARIABLE, connections=2) as client:
        answers: list[Any] = []
        patient = threading.Thread(target=lambda: answers.append(client.request_json("GET", "/patient", seconds=60.0)))
        patient.start()
        while not server.requests:
            pass
        with pytest.raises(RequestError, match="within 0.1 s"):
            client.request_json("GET", "/late", seconds=0.1)
        in_time.set()
        patient.join()
    assert answers == ["in time"]


def test_json_goes_out_and_comes_back_on_one_connection_with_the_token(
    serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, " t0ken\n")

    def echo_twice(connection: socket.socket, done: threading.Event) -> None:
        answer("200 OK", b'{"first": 1}')(connection, done)
        server.requests.append(receive(connection))
        answer("200 OK", b'{"second": 2}')(connection, done)

    server = serve(echo_twice)
    with HTTPClient(f"{server.url}/base", TOKEN_VARIABLE) as client:
        assert client.request_json("POST", "/path", {"é": [1, None]}, seconds=30) == {"first": 1}
        assert client.request_json("GET", seconds=30) == {"second": 2}
    first, second = (request.decode() for request in server.requests)
    assert first.startswith("POST /base/path HTTP/1.1\r\n")
    assert "authorization: Bearer t0ken\r\n" in first
    assert f"host: 127.0.0.1:{server.port}\r\n" in first
    assert json.loads(first.partition("\r\n\r\n")[2]) == {"é": [1, None]}
    assert second.startswith("GET /base HTTP/1.1\r\n")


def test_a_redirect_is_not_followed(serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "t0ken-for-one-server")
    elsewhere = serve(answer("200 OK"))
    server = serve(answer("307 Go", b"", f"location: {elsewhere.url}/"))
    with pytest.raises(RequestError, match="status 307; redirects are not followed: use the URL") as caught:
        ask(server.url)
    assert (caught.value.status, caught.value.is_transient) == (307, False)
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("status", "is_transient"),
    [(400, False), (404, False), (408, True), (409, True), (425, True), (429, True), (500, True), (503, True)],
)
def test_a_status_says_whether_it_may_pass_and_what_the_server_said(
    serve: Callable[..., RawServer], status: int, is_transient: bool
) -> None:
    server = serve(answer(f"{status} No", b"  too   many\r\nof you", "retry-after: 7"))
    with pytest.raises(RequestError) as caught:
        ask(server.url)
    assert str(caught.value) == f"status {status}: too many of you"
    error = caught.value
    assert (error.status, error.is_transient, error.retry_after) == (status, is_transient, 7.0)


def test_a_refused_token_names_its_variable_and_an_echo_of_it_is_not_repeated(
    serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "t0p-s3cret")
    server = serve(answer("403 No", b"what is t0p-s3cret?"))
    with pytest.raises(RequestError, match=rf"status 403; is {TOKEN_VARIABLE} set to a valid token\?") as caught:
        ask(server.url)
    assert "t0p-s3cret" not in str(caught.value)


def test_the_content_of_a_refusal_is_not_waited_for(serve: Callable[..., RawServer]) -> None:
    server = serve(drip(b"HTTP/1.1 503 Busy\r\ncontent-length: 100000\r\n\r\nbusy", b" "))
    with pytest.raises(RequestError, match="status 503: busy"):
        ask(server.url)


def test_where_only_the_status_counts_an_endless_content_is_left(serve: Callable[..., RawServer]) -> None:
    server = serve(drip(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"))
    with HTTPClient(server.url, TOKEN_VARIABLE) as client:
        client.post(b"{}", seconds=30.0, headers={"idempotency-key": "k"})
    assert b"idempotency-key: k\r\n" in server.requests[0]


def test_an_answer_that_is_too_long_is_an_error(
    serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.http.client.MAX_BODY_BYTES", 1000)
    server = serve(drip(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"40\r\n" + b" " * 64 + b"\r\n"))
    with pytest.raises(RequestError, match="the response is longer than 1000 bytes"):
        ask(server.url)


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xfe", b"[" * 200_000, b"9" * 5000])
def test_what_is_no_json_is_an_error_that_will_not_pass(serve: Callable[..., RawServer], body: bytes) -> None:
    with pytest.raises(RequestError, match="the response is not JSON") as caught:
        ask(serve(answer("200 OK", body)).url)
    assert not caught.value.is_transient


@pytest.mark.parametrize(
    "behave",
    [lambda connection, done: None, answer("999999 Odd"), lambda connection, done: connection.sendall(b"?\r\n\r\n")],
)
def test_a_server_that_speaks_no_http_is_an_error_that_may_pass(
    serve: Callable[..., RawServer], behave: Behaviour
) -> None:
    with pytest.raises(RequestError, match="RemoteProtocolError|ReadError") as caught:
        ask(serve(behave).url)
    assert caught.value.is_transient


def test_an_address_that_is_refused_is_not_connected_to(serve: Callable[..., RawServer]) -> None:
    server = serve(answer("200 OK"))

    def refuse(address: str) -> None:
        raise PermissionError(f"not to {address}")

    with (
        HTTPClient(server.url, TOKEN_VARIABLE, check_address=refuse) as client,
        pytest.raises(PermissionError, match=r"not to 127\.0\.0\.1"),
    ):
        client.request_json("GET", seconds=30)
    assert server.requests == []
