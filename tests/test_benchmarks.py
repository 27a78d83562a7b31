"""The page that the benchmarks write."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RUN_ALL = runpy.run_path(str(BENCHMARKS / "run_all.py"))


def result(ratio: str) -> dict[str, Any]:
    table = {"title": "A call", "promise": "at most 3", "columns": ["ratio"], "cells": [[ratio]], "remarks": []}
    machine = {"processor": "one", "cores": 2, "system": "Linux", "python": "CPython 3.11", "hookline": "0.1.0"}
    return {"machine": machine, "tables": [table]}


def test_a_script_that_was_not_run_again_keeps_its_section() -> None:
    page = RUN_ALL["page"]
    both = page({"startup": result("2.0"), "memory": result("7.0")}, "")
    assert "Measured earlier" not in both
    after = page({"memory": result("6.0")}, both)
    assert "Measured earlier: `startup.py`." in after
    assert (
        after[after.index("\n## `startup.py`") : after.index("\n## `memory.py`")]
        == (both[both.index("\n## `startup.py`") : both.index("\n## `memory.py`")])
    )
    assert ("| 7.0 |" in after, "| 6.0 |" in after) == (False, True)
    assert page({"startup": result("2.0"), "memory": result("7.0")}, after) == both


def test_every_script_is_described() -> None:
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert [script for script in RUN_ALL["SCRIPTS"] if f"| `{script}.py` |" not in readme] == []


def test_the_page_has_a_section_for_every_script() -> None:
    found = RUN_ALL["sections"]((BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8"))
    assert [*found] == [*RUN_ALL["SCRIPTS"]]
