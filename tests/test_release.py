"""One version for all distributions, set by one command."""

from __future__ import annotations

import importlib.util
import shutil
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tool: ModuleType, tmp_path: Path) -> Path:
    """The files of the repository that have a version in them."""
    for file in [*tool.versioned_files(ROOT), ROOT / "CHANGELOG.md"]:
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return tmp_path


def next_version(tool: ModuleType) -> str:
    return str(tool._HEADING.search((ROOT / "CHANGELOG.md").read_text())[1])


def test_all_distributions_and_the_changelog_agree(tool: ModuleType) -> None:
    assert list(tool.disagreements(ROOT)) == []


def test_the_makefile_and_the_requirements_name_every_distribution(tool: ModuleType) -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    named = next(line for line in makefile.splitlines() if line.startswith("DISTRIBUTIONS")).partition(":=")[2].split()
    folders = [str(file.parent.relative_to(ROOT)) for file in tool.projects(ROOT)]
    assert sorted(named) == sorted(folders)
    requirements = (ROOT / "requirements-dev.txt").read_text()
    assert [folder for folder in folders if f"-e ./{folder}" not in requirements] == []


def test_a_release_sets_the_version_everywhere_and_dates_the_changelog(tool: ModuleType, copy: Path) -> None:
    version = next_version(tool)
    tool.release(copy, version, "2026-12-24")
    assert list(tool.disagreements(copy)) == []
    projects = [tomllib.loads(file.read_text())["project"] for file in tool.projects(copy)]
    assert {project["version"] for project in projects} == {version}
    assert f"## {version} - 2026-12-24\n" in (copy / "CHANGELOG.md").read_text()
    assert "unreleased" not in (copy / "CHANGELOG.md").read_text().partition("\n### ")[0]
    (core,) = [project for project in projects if project["name"] == "hookline"]
    major, minor, _ = version.split(".")
    assert f"hookline-hookspecs>={major}.{minor},<{major}.{int(minor) + 1}" in core["dependencies"]
    assert f'__version__: Final = "{version}"' in (copy / "hookspecs/src/hookline_hookspecs/__init__.py").read_text()


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("two", "'two' is not a version, such as 0.2.0"),
        ("7.0.0", "CHANGELOG.md must begin with the section `## 7.0.0 - unreleased`, and has "),
    ],
)
def test_a_version_that_cannot_be_released_changes_nothing(
    tool: ModuleType, copy: Path, version: str, problem: str
) -> None:
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    with pytest.raises(SystemExit) as caught:
        tool.release(copy, version, "2026-12-24")
    assert str(caught.value).startswith(problem)
    assert {file: file.read_bytes() for file in before} == before


def test_a_version_below_a_released_one_is_refused(tool: ModuleType, copy: Path) -> None:
    changelog = copy / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.0.9 - unreleased\n\n## 0.1.0 - 2026-01-01\n")
    with pytest.raises(SystemExit, match=r"0\.0\.9 is not above 0\.1\.0, which is released"):
        tool.release(copy, "0.0.9", "2026-12-24")


def test_what_disagrees_is_named_with_its_file(tool: ModuleType, copy: Path) -> None:
    status, module = copy / "plugins/status/pyproject.toml", copy / "core/src/hookline/__init__.py"
    status.write_text(status.read_text().replace("hookline-hookspecs>=0.1,<0.2", "hookline-hookspecs>=0.1"))
    module.write_text(module.read_text().replace('__version__ = "', '__version__ = "9'))
    (copy / "CHANGELOG.md").write_text("# Changelog\n")
    version = tomllib.loads((copy / "hookspecs/pyproject.toml").read_text())["project"]["version"]
    bounds = tool.compatible(tool.Version(version))
    assert list(tool.disagreements(copy)) == [
        f"core/src/hookline/__init__.py has 9{version}, not {version}",
        f"plugins/status/pyproject.toml requires hookline-hookspecs>=0.1, not {bounds}",
        f"CHANGELOG.md has no section for {version}",
    ]
