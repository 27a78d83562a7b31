"""What the benchmarks share: timing contenders side by side, describing the machine, and printing what came out.

A promise of the design is a ratio between two things measured in one run. The machines we have are noisy, and a ratio
of two noisy numbers is worse than either. So contenders take turns in many short rounds, and each is judged by its
best: what disturbs a round only ever makes it slower, and what slows the machine for a while slows everyone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from timeit import Timer
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table as RichTable

__all__ = [
    "Table",
    "best_of_rounds",
    "describe_machine",
    "format_seconds",
    "json_option",
    "read_rows",
    "report",
    "write_page",
]

Name = TypeVar("Name", bound=Hashable)


def best_of_rounds(
    contenders: Mapping[Name, Timer], *, rounds: int = 200, round_seconds: float = 0.001
) -> dict[Name, float]:
    """The least time, in seconds, that one execution of each contender's statement took in any round.

    :param contenders: what to time, as `timeit` has it: a statement or a function without arguments.
    :param rounds: how many turns each contender has.
    :param round_seconds: how long a turn should last. Short turns fit between two interruptions.
    """
    executions = {name: _executions_within(round_seconds, timer) for name, timer in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    turns = list(contenders)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(turns)  # so that no contender always comes after the one that empties the caches
        for name in turns:
            best[name] = min(best[name], contenders[name].timeit(executions[name]) / executions[name])
    return best


def _executions_within(seconds: float, timer: Timer) -> int:
    """How many executions last about so long. Finding out warms the contender up."""
    executions, taken = 1, timer.timeit(1)
    while taken < seconds:
        executions *= 2
        taken = timer.timeit(executions)
    return max(1, round(executions * seconds / taken))


@dataclass
class Table:
    """Rows of measurements under one promise. Values are kept as measured for JSON, and as text for the eye."""

    title: str
    promise: str
    columns: Sequence[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    cells: list[Sequence[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, cells: Sequence[str], **measured: Any) -> None:
        self.cells.append(cells)
        self.rows.append(measured)


def describe_machine(*distributions: str) -> dict[str, str]:
    """The machine, the interpreter, and the versions of these distributions, `absent` for those not installed."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{distribution: _version(distribution) for distribution in distributions},
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def format_seconds(seconds: float) -> str:
    """A duration to three digits, in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def json_option(description: str | None) -> Path | None:
    """Parse the command line that all benchmarks have: `[--json FILE]`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it as JSON, times in seconds")
    file: Path | None = parser.parse_args().json
    return file


def report(machine: Mapping[str, str], tables: Sequence[Table], json_file: Path | None) -> None:
    """Print the machine and the tables, and write them as JSON if asked to."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log file has no width of its own, and a wrapped table cannot be read
    console.print(" · ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    for table in tables:
        grid = RichTable(title=f"\n{table.title}", caption=f"promise: {table.promise}", title_justify="left")
        for column in table.columns:
            grid.add_column(column, justify="right")
        for cells in table.cells:
            grid.add_row(*cells)
        console.print(grid)
        for remark in table.remarks:
            console.print(remark, highlight=False)
    if json_file is not None:
        contents = {"machine": dict(machine), "tables": [asdict(table) for table in tables]}
        json_file.write_text(json.dumps(contents, indent=2) + "\n", "utf-8")


def write_page(
    file: Path,
    title: str,
    words: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    summary: Sequence[str],
    *,
    written_by: str,
    distributions: Sequence[str] = ("hookline", "torch", "jax"),
) -> None:
    """Write a page of runs, one row for each: a benchmark that takes long does so after each run, to keep it."""
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine(*distributions).items())
    lines = [
        f"# {title}",
        "",
        f"Written by `benchmarks/{written_by}` on {time.strftime('%Y-%m-%d')}: {machine}.",
        *words,
        "",
        *(f"| {' | '.join(cells)} |" for cells in (columns, ["---:"] * len(columns), *rows)),
        "",
        *(f"- {line}" for line in summary),
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_rows(file: Path) -> list[list[str]]:
    """The rows of a page written by `write_page`; none if there is no such file."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]
