"""What the metrics plugin costs the training thread, beside a call of wandb, and what it costs the run as a whole.

    python benchmarks/metrics.py [--json FILE]

The first table times single calls: a report of twelve numbers to the plugin, which has its database open, and the same
report to wandb, offline, each after a step's worth of other work. The second is of a loop of such steps with the plugin
and without, in the processor time of the process: that of the plugin's own threads counts as if the loop had to wait
for all of it. The third is the size of a run's database at several rates of steps. It takes two minutes.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from measuring import Table, describe_machine, format_seconds, json_option, report

from hookline import PluginManager
from hookline_hookspecs import TrainerState
from hookline_hookspecs.sinks import Report, Run
from hookline_metrics import Metrics, Options
from hookline_metrics.sinks.condenser import Condenser
from hookline_metrics.sinks.sink_worker import FLUSH_SECONDS
from hookline_metrics.sinks.sqlite import SQLiteSink

NUMBERS: Final = {f"train/metric_{index}": 0.1 * index for index in range(12)}
STEP_SECONDS: Final = 0.0012
"""A gradient step of PPO on CartPole."""
CALLS, ROUNDS = 300, 12
STEPS, TURNS = 800, 12
SETTLE_SECONDS: Final = 2 * FLUSH_SECONDS + 0.2
"""A report waits for two polls at most."""
RATE, METRICS, MEGABYTES = 1000, 66, 20
"""Of the run whose database is measured: steps a second, metrics of a step, and what is promised for an hour."""
LIMIT_SECONDS: Final = 20e-6
OF_WANDB: Final = 1 / 8
SLOWER: Final = 0.03
"""What all five plugins may cost together."""

Log = Callable[[dict[str, Any], int], None]


class Hookline:
    """A run with the plugin alone."""

    def __init__(self, folder: Path) -> None:
        self.manager = PluginManager()
        self.manager.register(Metrics(Options(progress="off", report=False), self.manager.emit))
        self.state = TrainerState(run_dir=folder)
        self.manager.emit.on_new_training_run(state=self.state)
        self.manager.emit.pre_training(state=self.state, report_data={})

    def log(self, numbers: dict[str, Any], step: int) -> None:
        self.manager.emit.log_metrics(report_data=numbers, step=step)

    def end(self, reports: int) -> None:
        """Check that it did what it was timed for."""
        self.manager.emit.on_training_complete(state=self.state)
        self.manager.close()
        assert self.state.run_dir is not None
        with sqlite3.connect(self.state.run_dir / "stats.sqlite") as connection:
            # At more than a hundred numbers a second, a row stands for several reports.
            query = "SELECT sum(coalesce(count, 1)) FROM metrics WHERE name LIKE 'train/%'"
            (numbers,) = connection.execute(query).fetchone()
        assert numbers == reports * len(NUMBERS), f"{numbers} numbers of {reports} reports"


def busy_step() -> int:
    """Work of the interpreter's own, as long as a step takes on this machine."""
    total = 0
    for number in range(_loops):
        total += number * number
    return total


def _calibrate() -> int:
    loops, best = 20_000, float("inf")
    for _ in range(50):
        start = time.perf_counter()
        total = 0
        for number in range(loops):
            total += number * number
        best = min(best, time.perf_counter() - start)
    return max(1, round(loops * STEP_SECONDS / best))


_loops = _calibrate()


def single_calls(folder: Path) -> Table:
    table = Table(
        "One report of twelve numbers, on the training thread (ratio: to wandb.log offline)",
        "at most 20 µs (p50), and at most 1/8 of wandb.log",
        ["contender", "p50", "p99", "ratio", "held"],
    )
    ours = Hookline(folder / "calls")
    contenders: dict[str, Log] = {"hookline": ours.log}
    wandb_run = None
    if find_spec("wandb") is None:
        table.remarks.append("wandb is absent: pip install -r benchmarks/requirements.txt")
    else:
        import wandb

        wandb_run = wandb.init(
            mode="offline", dir=str(folder), settings=wandb.Settings(silent=True, console="off", x_disable_stats=True)
        )
        contenders["wandb"] = lambda numbers, step: wandb_run.log(numbers, step=step)
    times: dict[str, list[int]] = {name: [] for name in contenders}
    step = 0
    for _ in range(ROUNDS):
        for name, log in contenders.items():
            for _ in range(CALLS):
                busy_step()
                step += 1
                numbers = dict(NUMBERS)
                start = time.perf_counter_ns()
                log(numbers, step)
                times[name].append(time.perf_counter_ns() - start)
    ours.end(ROUNDS * CALLS)
    if wandb_run is not None:
        wandb_run.finish()
    p50 = {name: statistics.median(taken) / 1e9 for name, taken in times.items()}
    p99 = {name: statistics.quantiles(taken, n=100)[-1] / 1e9 for name, taken in times.items()}
    for name in contenders:
        ratio = p50[name] / p50["wandb"] if "wandb" in p50 else None
        held = p50[name] <= LIMIT_SECONDS and (ratio is None or ratio <= OF_WANDB)
        shown = ["" if ratio is None else f"{ratio:.4f}", ("yes" if held else "no") if name == "hookline" else "-"]
        table.add([name, format_seconds(p50[name]), format_seconds(p99[name]), *shown], contender=name, p50=p50[name])
    return table


def whole_loop(folder: Path) -> Table:
    table = Table(
        f"A loop of {STEP_SECONDS * 1e3:g} ms steps, each with a report of twelve numbers",
        "with all five plugins at most 3 % slower; this is one of them",
        ["contender", "processor time of a step", "more by", "held"],
    )
    ours = Hookline(folder / "loop")
    best = {"without": float("inf"), "with the plugin": float("inf")}
    step = 0
    for _ in range(TURNS):
        for name in best:
            start = time.process_time()
            for _ in range(STEPS):
                busy_step()
                step += 1
                numbers = dict(NUMBERS)
                if name != "without":
                    ours.log(numbers, step)
            time.sleep(SETTLE_SECONDS)  # by then, all that was reported is written
            best[name] = min(best[name], (time.process_time() - start) / STEPS)
    ours.end(TURNS * STEPS)
    for name, seconds in best.items():
        slower = seconds / best["without"] - 1
        held = "-" if name == "without" else "yes" if slower <= SLOWER else "no"
        table.add([name, format_seconds(seconds), f"{slower:.2%}", held], contender=name, step=seconds, slower=slower)
    return table


def database(folder: Path) -> Table:
    """An hour of reports, by their timestamps, through what condenses them into the database."""
    table = Table(
        f"A run's database after an hour, {METRICS} metrics a step",
        f"at most {MEGABYTES} MB an hour at {RATE} steps a second",
        ["steps a second", "rows", "MB", "held"],
    )
    rng = random.Random(0)
    steps = [{f"train/metric_{index}": rng.random() for index in range(METRICS)} for _ in range(RATE)]
    for rate in (RATE // 100, RATE // 10, RATE):
        run = Run(folder / f"database-{rate}")
        sink, condenser = SQLiteSink(run), Condenser()
        for second in range(3600):
            first = second * rate
            reports = [Report(first + i, second, steps[i], 1.8e9 + second + i / rate) for i in range(rate)]
            sink.write(condenser.condense(reports))
        sink.close()
        path = run.folder / "stats.sqlite"
        with sqlite3.connect(path) as connection:
            ((rows,),) = connection.execute("SELECT count(*) FROM metrics").fetchall()
        megabytes = path.stat().st_size / 1e6
        held = "yes" if megabytes <= MEGABYTES else "no"
        table.add([f"{rate}", f"{rows:,}", f"{megabytes:.1f}", held], rate=rate, megabytes=megabytes)
    return table


if __name__ == "__main__":
    json_file = json_option(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tables = [single_calls(folder), whole_loop(folder), database(folder)]
    report(describe_machine("hookline", "wandb"), tables, json_file)
