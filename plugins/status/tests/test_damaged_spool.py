"""A damaged spool, whenever the damage is found, is renamed, a new one is created, and the log says so correctly."""

from __future__ import annotations

import itertools
import re
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline_status.messages import Kind
from hookline_status.spool import Spool

Deliver = Callable[..., Any]
Until = Callable[[Callable[[], object]], None]

REFUSED = "http://127.0.0.1:9/status"  # nothing listens on the discard port


def filled(path: Path, count: int = 200) -> None:
    with closing(Spool(path, 1000)) as spool:
        spool.add((Kind.REPORT, f'{{"step": {number}, "padding": "{"x" * 100}"}}') for number in range(count))


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database, " * 1000)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:9000])


def zeroed_inside(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE messages(title TEXT, artist TEXT NOT NULL)")


@pytest.mark.parametrize(
    "damage", [garbage, truncated, zeroed_inside, of_another_program], ids=lambda damage: damage.__name__
)
def test_a_damaged_spool_is_set_aside_and_new_messages_are_delivered(
    server: Any,
    deliver: Deliver,
    report: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
) -> None:
    path = tmp_path / "status-spool.sqlite"
    filled(path)
    damage(path)
    before = path.read_bytes()
    delivery = deliver(server.url)
    for number in range(3):
        delivery.put(report(number))
    delivery.close(30.0)
    assert [body["step"] for body in server.bodies() if "padding" not in body][-3:] == [0, 1, 2]
    aside = tmp_path / "status-spool.sqlite.broken"
    assert aside.read_bytes()[:16] == before[:16]
    assert "It is renamed to status-spool.sqlite.broken, its messages are not delivered" in caplog.text
    assert "were not delivered in time" not in caplog.text
    assert "are lost" not in caplog.text


def test_a_spool_that_is_damaged_while_it_is_used_is_set_aside_too(
    deliver: Deliver, report: Any, until: Until, tmp_path: Path, new_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "status-spool.sqlite"
    delivery = deliver(REFUSED)
    for number in range(300):
        delivery.put(report(number))
    until(lambda: delivery._writer.waiting == 300)
    delivery._writer.spool._do(lambda connection: connection.execute("PRAGMA writable_schema = 1"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE messages")
        database.execute("CREATE TABLE messages(title TEXT)")
    for number in range(300, 305):
        delivery.put(report(number))
    until(lambda: delivery._writer.waiting == 5)
    delivery.close(0.1)
    assert "status-spool.sqlite.broken" in caplog.text
    assert f"5 status messages for {REFUSED} were not delivered in time. They are in {path}" in caplog.text
    server = new_server(0)
    deliver(server.url).close(30.0)
    assert [body["step"] for body in server.bodies()] == list(range(300, 305))


def test_a_message_that_is_no_text_makes_way_for_the_others_and_is_counted(
    server: Any, deliver: Deliver, tmp_path: Path
) -> None:
    path = tmp_path / "status-spool.sqlite"
    filled(path, 3)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE messages SET body = CAST(x'ff' AS TEXT) WHERE id = 2")
    delivery = deliver(server.url)
    delivery.close(30.0)
    assert [body["step"] for body in server.bodies()] == [0, 2]
    assert delivery.dropped == 1


def test_a_second_damaged_spool_does_not_replace_the_first(tmp_path: Path) -> None:
    path = tmp_path / "status-spool.sqlite"
    for _ in range(3):
        garbage(path)
        Spool(path, 10).close()
    names = sorted(found.name for found in tmp_path.iterdir() if ".broken" in found.name)
    assert names == [f"status-spool.sqlite.broken{number}" for number in ("", "-2", "-3")]


def test_messages_that_never_got_to_disk_are_said_to_be_lost(
    deliver: Deliver, report: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = tmp_path / "run"
    obstacle.write_text("no folder")
    delivery = deliver(REFUSED, obstacle)
    for number in range(7):
        delivery.put(report(number))
    delivery.close(0.5)
    path = obstacle / "status-spool.sqlite"
    assert f"7 status messages for {REFUSED} are lost, since they could not be written to {path} (" in caplog.text
    assert "They are in" not in caplog.text


# -- any contents -----------------------------------------------------------------------------------------------------

VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=40) | st.binary(max_size=40)


def takes_messages(path: Path) -> None:
    """For any contents of the spool, an added message is returned, and all returned messages can be sent."""
    with closing(Spool(path, 1000)) as spool:
        spool.add([(Kind.EVENT, '{"new": 1}')])
        bodies: list[str] = []
        for _ in itertools.takewhile(lambda _: len(spool), range(1000)):
            for message in spool.oldest(50):
                bodies.append(message.body)
                assert re.fullmatch("[0-9a-f]{32}", message.key)
                message.body.encode()
                spool.remove(message)
        assert bodies[-1:] == ['{"new": 1}']


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=5))
def test_a_spool_with_any_rows_delivers_what_can_be_and_takes_more(rows: list[tuple[Any, Any, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spool.sqlite"
        filled(path, 1)
        with closing(sqlite3.connect(path)) as database, database:
            for row in rows:
                database.execute("INSERT OR IGNORE INTO messages(key, kind, body) VALUES (?, ?, ?)", row)
        takes_messages(path)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_spool_with_any_bytes_changed_takes_more(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spool.sqlite"
        filled(path, 40)
        found = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            start = data.draw(st.integers(0, len(found) - 1))
            found[start : start + 8] = data.draw(st.binary(min_size=8, max_size=8))[: len(found) - start]
        path.write_bytes(found)
        takes_messages(path)
