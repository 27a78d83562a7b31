"""Run all benchmarks, one after the other, and write what they found into one page.

python benchmarks/run_all.py [SCRIPT ...]       # all of them, or those named; writes benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "RESULTS.md"
SCRIPTS: Final = ("dispatch", "rollout", "sampling", "rewards", "checkpoint", "metrics", "status", "ppo")
MACHINE: Final = ("processor", "cores", "system", "python")


def measure(script: str, folder: Path) -> dict[str, Any]:
    """What one script found; its own tables go to the terminal as it runs."""
    file = folder / f"{script}.json"
    subprocess.run([sys.executable, str(HERE / f"{script}.py"), "--json", str(file)], check=True)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def page(found: dict[str, dict[str, Any]]) -> str:
    machine = next(iter(found.values()))["machine"]
    lines = [
        "# What the benchmarks found",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d')}: {', '.join(str(machine[name]) for name in MACHINE)}"
        " (processor, cores, system, Python). Each ratio is to a baseline of the same run. A promise that was not kept",
        "is marked as such in its table.",
    ]
    for script, result in found.items():
        versions = {name: value for name, value in result["machine"].items() if name not in MACHINE}
        lines += ["", f"## `{script}.py`", "", ", ".join(f"{name} {value}" for name, value in versions.items())]
        for table in result["tables"]:
            lines += ["", f"**{table['title']}** (promise: {table['promise']})", "", row(table["columns"])]
            lines += [row(["---:"] * len(table["columns"])), *map(row, table["cells"]), *bullets(table["remarks"])]
    return "\n".join(lines) + "\n"


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') or ' ' for cell in cells)} |"


def bullets(remarks: list[str]) -> list[str]:
    return ["", *(f"- {remark}" for remark in remarks)] if remarks else []


def main() -> None:
    scripts = sys.argv[1:] or SCRIPTS
    with tempfile.TemporaryDirectory() as folder:
        found = {script: measure(script, Path(folder)) for script in scripts}
    RESULTS.write_text(page(found), encoding="utf-8")
    print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
