"""The workflows of `.github/` call what there is: they parse, and their make targets and files exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_has_the_least_rights_and_calls_make(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert workflow[True].keys() <= {"push", "pull_request", "workflow_dispatch"}  # YAML reads `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
    called = [target for step in steps(workflow) for target in re.findall(r"make (\w+)", step.get("run", ""))]
    assert called
    assert set(called) <= TARGETS
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in steps(workflow) if "uses" in step)


def test_tests_run_on_linux_and_macos_with_each_version_of_python_that_is_promised() -> None:
    workflow = yaml.safe_load((GITHUB / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "core" / "pyproject.toml").read_text())
    assert matrix["python"] == promised


def test_every_make_target_that_is_named_exists() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", ".ci/run")]
    pages += [*(ROOT / "docs").glob("*.md"), *GITHUB.rglob("*.md")]
    for page in pages:
        named = set(re.findall(r"(?:`|^)make (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= TARGETS, page


def test_the_templates_point_to_files_that_are_there() -> None:
    forms = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {form.name for form in forms} == {"bug.yml", "config.yml", "feature.yml"}
    for form in forms:
        table = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.name != "config.yml":
            kinds = {part["type"] for part in table["body"]}
            assert kinds <= {"markdown", "textarea", "input", "dropdown"}
            assert table.keys() == {"name", "description", "labels", "body"}
    request = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", request):
        assert (GITHUB / target).exists(), target
