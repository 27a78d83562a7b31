"""SECURITY.md: every promise names tests that exist, and what can be read off the source is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "SECURITY.md"

PICKLES = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "cloudpickle"}
FOR_WORKERS = ("core/src/hookline/rollout/", "plugins/ray/")
"""Where functions of the user go to processes that we start, which takes cloudpickle."""
MESSAGES_OF_WORKERS = ("child_process.py", "process_player.py")
"""Both ends of the socket pair between a run and the processes that it starts."""
SENDS_PICKLES = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
}
"""Functions of `torch.distributed`. What they receive is unpickled."""
BETWEEN_RANKS = ("core/src/hookline/training/ranks.py", "bridges/lightning/src/hookline_lightning/saved.py")
"""Where the ranks of a run exchange what each of them has."""


def test_every_promise_is_held_by_tests_that_exist() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "---" not in line
    ]
    promises = rows[1:]
    assert len(promises) >= 8
    for row in promises:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, f"no test holds: {row}"
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert any(isinstance(node, ast.FunctionDef) and node.name == test for node in ast.walk(tree)), (
                f"{file}::{test}"
            )


def test_no_module_loads_pickles_or_code_of_a_model() -> None:
    found = []
    for file in sorted(ROOT.glob("*/src/**/*.py")) + sorted(ROOT.glob("*/*/src/**/*.py")):
        place = file.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found += [f"{place}:{node.lineno} {fault}" for fault in _faults(node, place)]
    assert found == []


def _faults(node: ast.AST, place: str) -> list[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        return [name for name in names if name.partition(".")[0] in PICKLES - _allowed(place)]
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        faults = [str(first)] if called in ("require", "import_module") and first in PICKLES - _allowed(place) else []
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        unsafe = [name for name in ("allow_pickle", "trust_remote_code") if given.get(name, "False") != "False"]
        is_torch_load = called == "torch.load" and given.get("weights_only") != "True"
        is_sent = called.rpartition(".")[2] in SENDS_PICKLES and place not in BETWEEN_RANKS
        is_for_workers = called == "ray.put" or "cloudpickle" in called.split(".")
        is_sent |= is_for_workers and not place.startswith(FOR_WORKERS)
        sent = [f"{called} sends pickles"] if is_sent else []
        return [*faults, *unsafe, *sent, *(["torch.load without weights_only"] if is_torch_load else [])]
    return []


def _allowed(place: str) -> set[str]:
    if not place.startswith(FOR_WORKERS):
        return set()
    is_end = place.removeprefix("core/src/hookline/rollout/sources/") in MESSAGES_OF_WORKERS
    return {"cloudpickle", "pickle"} if is_end else {"cloudpickle"}


def test_the_rule_can_fail() -> None:
    source = "import pickle\nrequire('cloudpickle', 'x')\nnp.load(f, allow_pickle=True)\ntorch.load(f)\n"
    source += "dist.broadcast_object_list(x)\nall_gather_object(x, y)\nray.put(x)\nray.cloudpickle.dumps(x)\n"
    source += "dist.broadcast(x)\n"
    found = [
        fault for node in ast.walk(ast.parse(source)) for fault in _faults(node, "core/src/hookline/training/x.py")
    ]
    assert sorted(found) == [
        "all_gather_object sends pickles",
        "allow_pickle",
        "cloudpickle",
        "dist.broadcast_object_list sends pickles",
        "pickle",
        "ray.cloudpickle.dumps sends pickles",
        "ray.put sends pickles",
        "torch.load without weights_only",
    ]
