"""What happens when there is no room: heartbeats go first, terminal statuses never, and all is counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookline_status.message_queue import MessageQueue
from hookline_status.messages import Kind
from hookline_status.spool import Spool

H, R, E, T = Kind
REFUSED = "http://127.0.0.1:9/status"  # no server listens on the discard port


def put_all(queue: MessageQueue, report: Any, kinds: list[Kind]) -> list[tuple[Kind, int]]:
    for number, kind in enumerate(kinds):
        queue.put(report(number, kind))
    return [(message.kind, message.data["number"]) for _, message in queue.take()]


@pytest.mark.parametrize(
    ("put", "kept"),
    [
        ([H, R, H, E, H], [(R, 1), (E, 3), (H, 4)]),
        ([R, E, R, T, R], [(E, 1), (T, 3), (R, 4)]),
        ([E, E, E, E], [(E, 1), (E, 2), (E, 3)]),
        ([T, R, T, T], [(T, 0), (T, 2), (T, 3)]),
        ([T, T, T, T], [(T, 0), (T, 1), (T, 2), (T, 3)]),
    ],
    ids=["heartbeats first", "then reports", "then events", "no terminal status", "not even one too many"],
)
def test_the_oldest_of_the_least_kind_makes_room(report: Any, put: list[Kind], kept: Any, tmp_path: Path) -> None:
    queue = MessageQueue(3)
    assert put_all(queue, report, put) == kept
    assert queue.dropped == len(put) - len(kept)
    with closing(Spool(tmp_path / "spool.sqlite", 3)) as spool:
        dropped = sum(spool.add([(kind, str(number))]) for number, kind in enumerate(put))
        assert [int(message.body) for message in spool.oldest(10)] == [number for _, number in kept]
        assert dropped == len(put) - len(kept)


def test_what_is_put_back_stands_before_what_has_come_since(report: Any) -> None:
    queue = MessageQueue(4)
    for number in range(2):
        queue.put(report(number))
    taken = queue.take()
    queue.put(report(2, Kind.HEARTBEAT))
    queue.put(report(3))
    queue.put_back(taken)
    assert len(queue) == 4
    queue.put(report(4))
    assert [message.data["number"] for _, message in queue.take()] == [0, 1, 3, 4]


def test_with_a_dead_endpoint_memory_and_disk_stay_bounded_and_the_end_is_kept(
    deliver: Callable[..., Any], report: Any, until: Any, new_server: Any, tmp_path: Path
) -> None:
    delivery = deliver(REFUSED, capacity=50)
    delivery.put(report(0, Kind.TERMINAL))
    for number in range(1, 2000):
        delivery.put(report(number, Kind.HEARTBEAT if number % 2 else Kind.REPORT))
    delivery.put(report(2000, Kind.TERMINAL))
    until(lambda: delivery._writer.waiting == 50 and not len(delivery._queue))
    assert delivery.dropped == 2001 - 50
    delivery.close(0.1)
    with sqlite3.connect(tmp_path / "status-spool.sqlite") as database:
        kinds = [kind for (kind,) in database.execute("SELECT kind FROM messages ORDER BY id")]
    database.close()
    assert kinds[0] == kinds[-1] == Kind.TERMINAL
    assert Kind.HEARTBEAT not in kinds
