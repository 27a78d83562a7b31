"""Give all distributions of this repository one version, and date its section of the changelog.

    make release VERSION=0.2.0

It sets the version in every pyproject.toml and every `__version__`, what the distributions require of each other
(`>=0.2,<0.3`), and the date in CHANGELOG.md, then checks that all agree. It commits, tags and uploads nothing.
"""

from __future__ import annotations

import re
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
UNRELEASED = "unreleased"

_VERSION = re.compile(r'^(version = |__version__(?:: Final)? = )"([^"]+)"$', re.MULTILINE)
_OWN_REQUIREMENT = re.compile(r'"(hookline[\w-]*(?:\[[\w,-]+\])?)>=[\d.]+,<[\d.]+"')
_HEADING = re.compile(r"^## (\S+) - (\S+)$", re.MULTILINE)


def projects(root: Path) -> list[Path]:
    """The pyproject.toml of every distribution that is published from here."""
    patterns = ("hookspecs", "core", "plugins/*", "bridges/*")
    return [file for pattern in patterns for file in sorted(root.glob(f"{pattern}/pyproject.toml"))]


def versioned_files(root: Path) -> list[Path]:
    """All files that have the version in them."""
    modules = [file for project in projects(root) for file in sorted(project.parent.glob("src/*/__init__.py"))]
    return [*projects(root), *(file for file in modules if "__version__" in file.read_text(encoding="utf-8"))]


def release(root: Path, text: str, date: str) -> None:
    """Set the version everywhere. Raises SystemExit, before anything is changed, if it cannot be released."""
    try:
        version = Version(text)
    except InvalidVersion:
        sys.exit(f"{text!r} is not a version, such as 0.2.0")
    changelog = root / "CHANGELOG.md"
    headings = _HEADING.findall(changelog.read_text(encoding="utf-8"))
    if not headings or headings[0] != (text, UNRELEASED):
        found = " - ".join(headings[0]) if headings else "no section"
        sys.exit(f"CHANGELOG.md must begin with the section `## {text} - {UNRELEASED}`, and has {found}")
    earlier = [own for own, _ in headings[1:] if Version(own) >= version]
    if earlier:
        sys.exit(f"{text} is not above {earlier[0]}, which is released")
    for file in versioned_files(root):
        content = file.read_text(encoding="utf-8")
        content = _VERSION.sub(rf'\g<1>"{text}"', content)
        file.write_text(_OWN_REQUIREMENT.sub(rf'"\g<1>{compatible(version)}"', content), encoding="utf-8")
    dated = changelog.read_text(encoding="utf-8").replace(f"## {text} - {UNRELEASED}", f"## {text} - {date}", 1)
    changelog.write_text(dated, encoding="utf-8")


def compatible(version: Version) -> str:
    """What a distribution requires of the others: this version or a later one without breaking changes."""
    upper = f"0.{version.minor + 1}" if version.major == 0 else str(version.major + 1)
    return f">={version.major}.{version.minor},<{upper}"


def disagreements(root: Path) -> Iterator[str]:
    """What does not agree: versions, requirements among the distributions, the changelog."""
    version = tomllib.loads(projects(root)[0].read_text(encoding="utf-8"))["project"]["version"]
    for file in versioned_files(root):
        found = {own for _, own in _VERSION.findall(file.read_text(encoding="utf-8"))}
        if found != {version}:
            yield f"{file.relative_to(root)} has {', '.join(sorted(found)) or 'no version'}, not {version}"
    for file in projects(root):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).values()
        for text in [*project["dependencies"], *(own for extra in extras for own in extra)]:
            requirement = Requirement(text)
            is_own = requirement.name.startswith("hookline") and requirement.name != project["name"]
            # An extra for tests takes any version: the dependencies say which.
            is_needed = text in project["dependencies"] or requirement.specifier
            if is_own and is_needed and requirement.specifier != SpecifierSet(compatible(Version(version))):
                yield f"{file.relative_to(root)} requires {text}, not {compatible(Version(version))}"
    sections = dict(_HEADING.findall((root / "CHANGELOG.md").read_text(encoding="utf-8")))
    if version not in sections:
        yield f"CHANGELOG.md has no section for {version}"


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("name the version: make release VERSION=0.2.0")
    release(ROOT, sys.argv[1], time.strftime("%Y-%m-%d"))
    found = list(disagreements(ROOT))
    if found:
        sys.exit("\n".join(found))
    count = len(projects(ROOT))
    print(f"{count} distributions are {sys.argv[1]}. Next: make .venv/.installed test dist, commit, tag v{sys.argv[1]}")


if __name__ == "__main__":
    main()
