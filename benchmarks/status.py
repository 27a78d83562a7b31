"""What the status plugin costs the training thread when its endpoint is dead, hangs or is slow.

    python benchmarks/status.py [--json FILE]

Every event goes through the plugin manager, as in a run of steps and epochs; the time is that of one emission. Events
come one straight after the other, which no training does: it is the worst that can happen to the queue. The baseline
is what a logger function usually is, a POST to a server that answers at once, on the training thread. Servers are
processes of their own. It takes a minute.
"""

from __future__ import annotations

import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx
from measuring import Table, describe_machine, format_seconds, json_option, report

from hookline import PluginManager
from hookline_hookspecs import TrainerState
from hookline_status import Options, Status
from hookline_status.spool import SPOOL_NAME

EVENTS: Final = 100_000
WARM_UP: Final = 60_000
"""More than the queue and the spool hold: from then on memory must not grow."""
STEPS_OF_AN_EPOCH: Final = 1000
POSTS: Final = 2000
REPORT: Final = {"current_epoch": 3, "current_step": 1200, "total_steps": 5000, "train/loss": 0.5, "train/kl": 0.01}
PROMISED_P99: Final = 100e-6
PROMISED_EXIT: Final = 5.0
PROMISED_GROWTH: Final = 32 * 2**20

SERVER: Final = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(float(sys.argv[1]))
        self.send_response(204)
        self.end_headers()
    def log_message(self, *args): ...

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def answering(seconds: float) -> Iterator[str]:
    """A server that takes so long for each answer."""
    with subprocess.Popen([sys.executable, "-c", SERVER, str(seconds)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/status"
        finally:
            server.kill()


@contextmanager
def hung() -> Iterator[str]:
    """A socket that is connected to, and never read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/status"


@contextmanager
def dead() -> Iterator[str]:
    """A port that refuses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}/status"


class Measured(NamedTuple):
    seconds: list[float]
    exit_seconds: float
    growth: int
    spool_bytes: int
    dropped: float


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def time_each(call: Callable[[int], object], count: int) -> list[float]:
    clock = time.perf_counter_ns
    seconds = []
    for step in range(count):
        start = clock()
        call(step)
        seconds.append((clock() - start) / 1e9)
    return seconds


def run_with(endpoint: str) -> Measured:
    with tempfile.TemporaryDirectory() as folder, PluginManager() as manager:
        manager.register(Status(Options(endpoint=endpoint)), "status")
        state = TrainerState(run_dir=Path(folder))
        manager.emit.on_new_training_run(state=state)

        emit = manager.emit
        moments: list[Callable[[], object]] = [
            lambda: emit.pre_training_step(state=state, report_data=REPORT),
            lambda: emit.on_mb_end(state=state),
            lambda: emit.post_training_step(state=state, report_data=REPORT),
            lambda: emit.log_metrics(report_data=REPORT, step=state.step),
        ] * STEPS_OF_AN_EPOCH
        moments.append(lambda: emit.on_epoch_end(state=state))

        def event(number: int) -> None:
            state.epoch, place = divmod(number, len(moments))
            moments[place]()

        time_each(event, WARM_UP)
        time.sleep(0.5)  # what is in memory is written
        before = resident_bytes()
        seconds = time_each(event, EVENTS)
        time.sleep(0.5)
        growth = resident_bytes() - before
        [(_, numbers)] = manager.emit.collect_metrics(state=state).items()
        begin = time.perf_counter()
        manager.emit.on_training_complete(state=state)
        unfinished = manager.drain()
        exit_seconds = time.perf_counter() - begin
        assert not unfinished
        spool_bytes = sum(path.stat().st_size for path in Path(folder).glob(f"{SPOOL_NAME}*"))
    return Measured(seconds, exit_seconds, growth, spool_bytes, numbers["status/dropped"])


def post_each() -> list[float]:
    with answering(0.0) as url, httpx.Client() as client:
        client.post(url, json={})
        return time_each(lambda step: client.post(url, json={"step": step, "metrics": REPORT}), POSTS)


def quantile(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100)[percent - 1]


def mark(kept: bool) -> str:
    return "" if kept else " (not kept)"


def costs() -> Table:
    baseline = post_each()
    table = Table(
        f"{EVENTS:,} events, one straight after the other, on the training thread",
        "p99 of at most 100 µs; exit within 5 s; memory bounded",
        ["endpoint", "p50", "p99", "longest", "of a POST (p99)", "exit", "memory", "spool", "dropped"],
    )
    shown = [format_seconds(value) for value in (quantile(baseline, 50), quantile(baseline, 99), max(baseline))]
    table.add(
        ["a POST by httpx", *shown, "1", "-", "-", "-", "-"],
        endpoint="a POST by httpx",
        p50=quantile(baseline, 50),
        p99=quantile(baseline, 99),
        longest=max(baseline),
    )
    for name, opened in {"answers": answering(0.0), "slow": answering(0.2), "hangs": hung(), "dead": dead()}.items():
        with opened as endpoint:
            measured = run_with(endpoint)
        p50, p99 = quantile(measured.seconds, 50), quantile(measured.seconds, 99)
        table.add(
            [
                name,
                format_seconds(p50),
                format_seconds(p99) + mark(p99 <= PROMISED_P99),
                format_seconds(max(measured.seconds)),
                f"1/{quantile(baseline, 99) / p99:.0f}",
                format_seconds(measured.exit_seconds) + mark(measured.exit_seconds <= PROMISED_EXIT),
                f"{measured.growth / 2**20:+.1f} MB" + mark(measured.growth <= PROMISED_GROWTH),
                f"{measured.spool_bytes / 2**20:.1f} MB",
                f"{measured.dropped:,.0f}",
            ],
            endpoint=name,
            p50=p50,
            p99=p99,
            longest=max(measured.seconds),
            exit_seconds=measured.exit_seconds,
            growth_bytes=measured.growth,
            spool_bytes=measured.spool_bytes,
            dropped=measured.dropped,
        )
    table.remarks.append("exit: with 10,000 messages that wait, so that it takes the time that it may take at most")
    table.remarks.append(
        f"memory: how much the process has grown over these events, after {WARM_UP:,} others had filled the queue"
    )
    return table


if __name__ == "__main__":
    json_file = json_option(__doc__)
    logging.disable(logging.WARNING)  # that endpoints fail is what this is about
    report(describe_machine("httpcore", "httpx"), [costs()], json_file)
