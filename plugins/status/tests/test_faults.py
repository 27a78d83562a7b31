"""Endpoints that fail in every way they can: nothing is lost, nothing is held up."""

from __future__ import annotations

import email.utils
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from hookline.http.requests import Backoff

COUNT = 20

Deliver = Callable[..., Any]
Until = Callable[[Callable[[], object]], None]


@pytest.fixture(autouse=True)
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline_status.sender.REQUEST_SECONDS", 0.3)


def send(delivery: Any, report: Any, numbers: Iterator[int] | range = range(COUNT)) -> None:
    for number in numbers:
        delivery.put(report(number))


def numbers(server: Any) -> list[int]:
    return [body["step"] for body in server.bodies()]


def answer(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return behave


def hang(handler: Any) -> None:
    handler.server.released.wait(30)
    handler.close_connection = True


def drip_headers(handler: Any) -> None:
    """A byte now and then, each in good time for a timeout that counts from the last one."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-drip: ")
    while not handler.server.released.wait(0.02):
        handler.wfile.write(b"x")


def drip_content(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000000")
    handler.end_headers()
    while not handler.server.released.wait(0.02):
        handler.wfile.write(b"x")


def pour_content(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "100000000000")
    handler.end_headers()
    while not handler.server.released.is_set():
        handler.wfile.write(b"x" * 65536)


def garbage(handler: Any) -> None:
    handler.wfile.write(b"\x00\xffno HTTP at all\r\n\r\n")
    handler.close_connection = True


def hang_up(handler: Any) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def test_messages_arrive_in_order_each_with_a_key_of_its_own(
    server: Any, deliver: Deliver, report: Any, until: Until
) -> None:
    send(deliver(server.url), report)
    until(lambda: len(server.accepted) == COUNT)
    assert numbers(server) == list(range(COUNT))
    assert len({request.key for request in server.accepted}) == COUNT
    assert server.accepted[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "fault", [answer(500), answer(503), answer(404), answer(429), hang, drip_headers, garbage, hang_up],
    ids=["500", "503", "404", "429", "hanging", "dripping", "garbage", "hanging up"],
)  # fmt: skip
def test_a_message_that_did_not_get_through_is_sent_again_with_the_same_key(
    server: Any, deliver: Deliver, report: Any, until: Until, fault: Any
) -> None:
    server.behaviours = [fault, fault]
    send(deliver(server.url), report)
    until(lambda: len(server.accepted) == COUNT)
    assert numbers(server) == list(range(COUNT))
    assert len({request.key for request in server.requests[:3]}) == 1
    assert [request.body["step"] for request in server.requests[:4]] == [0, 0, 0, 1]


@pytest.mark.parametrize("fault", [drip_content, pour_content], ids=["dripping", "pouring"])
def test_an_answer_without_end_is_left_and_the_message_counts_as_delivered(
    server: Any, deliver: Deliver, report: Any, until: Until, fault: Any
) -> None:
    server.behaviours = [fault]
    send(deliver(server.url), report)
    until(lambda: len(server.accepted) == COUNT - 1)
    assert [request.body["step"] for request in server.requests] == list(range(COUNT))


def test_an_endpoint_that_is_not_there_yet_gets_everything_once_it_is(
    new_server: Any, deliver: Deliver, report: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    with caplog.at_level(logging.WARNING):
        delivery = deliver(f"http://127.0.0.1:{port}/status?key=in-the-query")
        send(delivery, report)
        until(lambda: caplog.records)
    assert f"cannot be sent to http://127.0.0.1:{port}/status (ConnectError" in caplog.text
    assert "in-the-query" not in caplog.text
    server = new_server(port)
    until(lambda: len(server.accepted) == COUNT)
    assert numbers(server) == list(range(COUNT))
    assert len(caplog.records) == 1, "a failure is told once, not at every attempt"


def test_an_endpoint_that_is_restarted_in_the_middle_loses_nothing(
    new_server: Any, deliver: Deliver, report: Any, until: Until
) -> None:
    first = new_server(0)
    delivery = deliver(first.url)
    send(delivery, report, range(500))
    until(lambda: first.accepted)
    first.stop()
    second = new_server(first.server_port)

    def by_key() -> dict[str, int]:
        return {request.key: request.body["step"] for request in [*first.accepted, *second.accepted]}

    until(lambda: len(by_key()) == 500)
    assert list(by_key().values()) == list(range(500)), "duplicates have the same key, and the order is kept"
    assert second.accepted


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(server: Any, deliver: Deliver, report: Any, until: Until, form: str) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=2)
    value = "1" if form == "seconds" else email.utils.format_datetime(moment, usegmt=True)
    server.behaviours = [answer(429, retry_after=value)]
    send(deliver(server.url), report, range(1))
    until(lambda: server.accepted)
    # A date has whole seconds, so that it may be up to a second earlier than it was meant.
    assert server.requests[1].time - server.requests[0].time >= (1.0 if form == "seconds" else 0.5)


def test_a_redirect_is_not_followed(
    server: Any, deliver: Deliver, report: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.behaviours = [answer(307, location=f"http://127.0.0.1:{server.server_port}/elsewhere")]
    send(deliver(server.url), report, range(1))
    until(lambda: server.accepted)
    assert {request.path for request in server.requests} == {"/status"}
    assert "status 307; redirects are not followed" in caplog.text


def test_a_missing_token_is_hinted_at(
    server: Any, deliver: Deliver, report: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.behaviours = [answer(401)]
    send(deliver(server.url), report, range(1))
    until(lambda: server.accepted)
    assert "status 401; is HOOKLINE_STATUS_TOKEN set to a valid token?" in caplog.text


def test_a_message_that_is_refused_for_what_it_is_makes_way_and_is_counted(
    server: Any, deliver: Deliver, report: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.behaviours = [answer(422)]
    delivery = deliver(server.url)
    send(delivery, report)
    until(lambda: len(server.accepted) == COUNT - 1)
    assert numbers(server) == list(range(1, COUNT))
    assert delivery.dropped == 1
    assert "rejected a message: status 422" in caplog.text


def test_an_endpoint_that_hangs_does_not_keep_messages_from_disk(
    server: Any, deliver: Deliver, report: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline_status.sender.REQUEST_SECONDS", 60.0)
    server.always = hang
    delivery = deliver(server.url)
    send(delivery, report, range(1))
    until(lambda: server.requests)
    send(delivery, report, range(1, COUNT))
    until(lambda: delivery._writer.waiting == COUNT)
    server.always = None
    server.released.set()


def test_the_end_waits_for_deliveries_and_then_gives_up(
    server: Any, deliver: Deliver, report: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    server.always = hang
    delivery = deliver(server.url)
    send(delivery, report)
    delivery.close(0.5)
    assert f"{COUNT} status messages for {server.url} were not delivered in time" in caplog.text
    assert (
        f"They are in {tmp_path / 'status-spool.sqlite'} and will be sent when that folder is used again" in caplog.text
    )
    server.always = None
    deliver(server.url).close(30.0)
    assert numbers(server) == list(range(COUNT)), "the rest is sent at the next start"


def test_the_end_does_not_wait_out_a_long_pause_between_attempts(
    server: Any, deliver: Deliver, report: Any, until: Until
) -> None:
    server.behaviours = [answer(500)]
    delivery = deliver(server.url, backoff=Backoff(first=1e6, longest=1e6))
    send(delivery, report)
    until(lambda: server.requests)
    delivery.close(30.0)
    assert numbers(server) == list(range(COUNT))


def test_a_temporary_spool_is_kept_only_when_something_is_left(
    server: Any, deliver: Deliver, report: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    delivery = deliver(server.url, None)
    send(delivery, report)
    delivery.close(30.0)
    assert list(tmp_path.iterdir()) == []
    server.always = hang
    delivery = deliver(server.url, None)
    send(delivery, report)
    delivery.close(0.2)
    [folder] = tmp_path.iterdir()
    assert f"sent when spool_dir is {str(folder)!r}" in caplog.text
    assert folder.stat().st_mode & 0o077 == 0, "no other user may read it"


def test_threads_end_with_the_delivery(server: Any, deliver: Deliver, report: Any) -> None:
    before = threading.active_count()
    delivery = deliver(server.url)
    send(delivery, report)
    delivery.close(30.0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hookline-status")]
    assert threading.active_count() <= before + 1  # the server's own for the connection


def test_a_folder_that_cannot_be_written_is_told_once_and_tried_again(
    server: Any, deliver: Deliver, report: Any, until: Until, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = tmp_path / "run"
    obstacle.write_text("no folder")
    delivery = deliver(server.url, obstacle)
    send(delivery, report)
    until(lambda: "cannot be written to" in caplog.text)
    time.sleep(0.3)
    assert caplog.text.count("cannot be written to") == 1
    obstacle.unlink()
    until(lambda: len(server.accepted) == COUNT)
    assert numbers(server) == list(range(COUNT))
