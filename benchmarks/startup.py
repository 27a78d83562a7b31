"""How long the commands take that only look around: `hookline --help`, `plugins` and `hooks`.

    python benchmarks/startup.py [--json FILE]

Each is a process of its own, with all plugins of this repository installed and enabled. The baseline is a process
that imports `rich.console` and `pydantic`. Processes take turns, and each is judged by its median. CPU time is of the
process alone; wall time is also of all else that the machine does. All have their bytecode cached, as pip leaves it. It
takes a minute.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from measuring import Table, describe_machine, format_seconds, json_option, report

ROUNDS: Final = 25
PROMISED: Final = 3.0
BASELINE: Final = "import rich.console, pydantic"
COMMANDS: Final = {
    BASELINE: ["-c", BASELINE],
    "hookline --help": ["-m", "hookline", "--help"],
    "hookline plugins": ["-m", "hookline", "plugins"],
    "hookline hooks": ["-m", "hookline", "hooks"],
}
SETTINGS: Final = "[plugins.checkpoint]\nevery = 5\n"


class Times(NamedTuple):
    cpu: float
    wall: float


def run(arguments: list[str], folder: Path, environ: dict[str, str]) -> Times:
    """The times of one process."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, cwd=folder, env=environ)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments} failed"
    return Times(usage.ru_utime + usage.ru_stime, wall)


def measure(folder: Path) -> dict[str, Times]:
    """The median times of each command, and of `plugins` in a project with settings."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE_")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    (folder / "project").mkdir()
    (folder / "project" / "hookline.toml").write_text(SETTINGS, encoding="utf-8")
    turns = [(name, arguments, folder) for name, arguments in COMMANDS.items()]
    turns.append(("hookline plugins, with options to validate", COMMANDS["hookline plugins"], folder / "project"))
    seen: defaultdict[str, list[Times]] = defaultdict(list)
    for _, arguments, place in turns:
        run(arguments, place, environ)  # writes the bytecode
    for _ in range(ROUNDS):
        random.shuffle(turns)
        for name, arguments, place in turns:
            seen[name].append(run(arguments, place, environ))
    return {
        name: Times(statistics.median(own.cpu for own in seen[name]), statistics.median(own.wall for own in seen[name]))
        for name, *_ in turns
    }


def main() -> None:
    json_file = json_option(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        times = measure(Path(folder))
    baseline = times[BASELINE]
    table = Table(
        f"Commands that look around (medians of {ROUNDS} processes each, by turns)",
        f"at most {PROMISED:g} times the baseline",
        ["command", "CPU time", "ratio", "wall time", "ratio", "held"],
    )
    for name in sorted(times, key=lambda name: times[name].cpu):
        cpu, wall = times[name]
        ratios = cpu / baseline.cpu, wall / baseline.wall
        held = "-" if name not in COMMANDS or name == BASELINE else "yes" if max(ratios) <= PROMISED else "NO"
        cells = [name, format_seconds(cpu), f"{ratios[0]:.2f}", format_seconds(wall), f"{ratios[1]:.2f}", held]
        table.add(cells, command=name, cpu=cpu, wall=wall, cpu_ratio=ratios[0], wall_ratio=ratios[1])
    table.remarks.append("Options of plugins are validated by pydantic, whose import is then a third of the time.")
    report(describe_machine("hookline", "cyclopts", "pydantic", "rich"), [table], json_file)


if __name__ == "__main__":
    main()
