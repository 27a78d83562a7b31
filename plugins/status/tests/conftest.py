"""A real server on loopback that takes messages, or misbehaves as a test wants."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hookline.http.requests import Backoff
from hookline_status.delivery import Delivery, close_all
from hookline_status.endpoint import Endpoint
from hookline_status.messages import Kind, Message

Behaviour = Callable[[Any], object]


class Request(NamedTuple):
    key: str
    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    time: float


class StatusServer(ThreadingHTTPServer):
    """Keeps what it is sent. `behaviours` are used up one by one, before all is well again."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[Request] = []
        self.behaviours: list[Behaviour] = []
        self.always: Behaviour | None = None
        self.accepted: list[Request] = []
        self.released = threading.Event()
        self.lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/status"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def stop(self) -> None:
        """Stop as a killed server does, in the middle of its connections."""
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def bodies(self) -> list[dict[str, Any]]:
        with self.lock:
            return [request.body for request in self.accepted]

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hangs up is nothing to tell of


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StatusServer

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(headers["idempotency-key"], body, headers, self.path, time.monotonic())
        with server.lock:
            server.requests.append(request)
            behaviour = server.behaviours.pop(0) if server.behaviours else server.always
        self.request_read = request
        (behaviour or Handler.accept)(self)

    def accept(self) -> None:
        with self.server.lock:
            self.server.accepted.append(self.request_read)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[StatusServer]:
    server = StatusServer()
    yield server
    server.stop()


@pytest.fixture
def new_server() -> Iterator[Callable[[int], StatusServer]]:
    """Starts servers on given ports."""
    servers: list[StatusServer] = []

    def start(port: int) -> StatusServer:
        servers.append(StatusServer(port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(autouse=True)
def closed_deliveries() -> Iterator[None]:
    """What is open at the end of a test is closed, and its threads have ended."""
    yield
    logging.getLogger("hookline.status").disabled = True
    close_all(0.0)
    for thread in threading.enumerate():
        if thread.name.startswith("hookline-status-"):
            thread.join()
    logging.getLogger("hookline.status").disabled = False


@pytest.fixture
def deliver(tmp_path: Path, closed_deliveries: None) -> Callable[..., Delivery]:
    """Opens deliveries that try again soon."""

    def build(url: str, folder: Path | None = tmp_path, **options: Any) -> Delivery:
        return Delivery(Endpoint.of(url), folder, **{"backoff": Backoff(0.01, 0.05), **options})

    return build


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits for a condition: `until(lambda: server.requests)`."""

    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 500
        while not condition():
            assert time.monotonic() < end, "it has not come to pass in 500 seconds"
            time.sleep(0.005)

    return wait


@pytest.fixture
def report() -> Callable[..., Message]:
    """A status with a number: `report(3)`. With a kind, an event of that kind."""

    def build(number: int, kind: Kind = Kind.REPORT) -> Message:
        if kind is Kind.REPORT:
            return Message(kind, "test", time.time(), {"number": number}, step=number)
        return Message(kind, "test", time.time(), {"number": number}, phase=kind.name.lower())

    return build
