"""Run all benchmarks, one after the other, and write what they found into one page.

python benchmarks/run_all.py [SCRIPT ...]       # all of them, or those named; writes benchmarks/RESULTS.md

The page keeps the sections of scripts that were not run, and names them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "RESULTS.md"
KEPT: Final = HERE.parent / "build" / "benchmarks"
SCRIPTS: Final = (
    "dispatch",
    "startup",
    "rollout",
    "sampling",
    "grpo",
    "memory",
    "rewards",
    "checkpoint",
    "metrics",
    "status",
    "bridges",
    "sources",
    "scaling",
    "ppo",
    "plugins",
)
MACHINE: Final = ("processor", "cores", "system", "python")


def measure(script: str) -> None:
    """Run one script, whose tables go to the terminal as well."""
    subprocess.run([sys.executable, str(HERE / f"{script}.py"), "--json", str(KEPT / f"{script}.json")], check=True)


def page(found: dict[str, dict[str, Any]], before: str) -> str:
    """The new page.

    :param found: what each script has written. The others keep their sections.
    :param before: the page that there is.
    """
    machine, kept = next(iter(found.values()))["machine"], sections(before)
    head = [
        "# What the benchmarks found",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d')}, on {machine['processor']}, {machine['cores']} cores,",
        f"{machine['system']}, {machine['python']}. Each ratio is to a baseline of the same run. A promise that was",
        "not kept is marked as such in its table.",
    ]
    earlier = [f"`{script}.py`" for script in SCRIPTS if script in kept and script not in found]
    if earlier:
        head.append(f"Measured earlier: {', '.join(earlier)}.")
    parts = kept | {script: section(script, result) for script, result in found.items()}
    return "\n\n".join(["\n".join(head), *(parts[script] for script in SCRIPTS if script in parts)]) + "\n"


def sections(text: str) -> dict[str, str]:
    """The sections of a page by script."""
    parts = [f"## `{part.rstrip()}" for part in text.split("\n## `")[1:]]
    return {part.removeprefix("## `").partition(".py`")[0]: part for part in parts}


def section(script: str, result: dict[str, Any]) -> str:
    versions = {name: value for name, value in result["machine"].items() if name not in MACHINE}
    lines = [f"## `{script}.py`", "", ", ".join(f"{name} {value}" for name, value in versions.items())]
    for table in result["tables"]:
        lines += ["", f"**{table['title']}** (promise: {table['promise']})", "", row(table["columns"])]
        lines += [row(["---:"] * len(table["columns"])), *map(row, table["cells"]), *bullets(table["remarks"])]
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') or ' ' for cell in cells)} |"


def bullets(remarks: list[str]) -> list[str]:
    return ["", *(f"- {remark}" for remark in remarks)] if remarks else []


def main() -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    for script in sys.argv[1:] or SCRIPTS:
        measure(script)
    files = {script: KEPT / f"{script}.json" for script in SCRIPTS}
    found = {script: json.loads(file.read_text(encoding="utf-8")) for script, file in files.items() if file.exists()}
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    RESULTS.write_text(page(found, before), encoding="utf-8")
    print(f"written to {RESULTS.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
