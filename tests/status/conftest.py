"""A server on loopback that keeps the messages it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest


class Message(NamedTuple):
    host: str
    path: str
    body: dict[str, Any]


class StatusServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.messages: list[Message] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/status"

    def bodies(self) -> list[dict[str, Any]]:
        return [message.body for message in list(self.messages)]

    def data_of(self, phase: str) -> list[dict[str, Any]]:
        return [body["data"] for body in self.bodies() if body.get("phase") == phase]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StatusServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.messages.append(Message(self.headers["host"], self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def status_server() -> Iterator[StatusServer]:
    server = StatusServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
