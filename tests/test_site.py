"""The documentation site is built without the internet, with every page and no dead link."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

from hookline.importing import import_file

ROOT = Path(__file__).parents[1]
SITE = import_file(ROOT / "tools" / "documentation_site.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500, check=False)
    assert result.returncode == 0, (
        "`make site` fails. A page that is not in the navigation is added to `nav` in mkdocs.yml:\n" + result.stderr
    )
    return folder


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    names = [Path(name).with_suffix("") for name in SITE.pages().values()]
    assert [name for name in names if not (site / name.parent / name.name / "index.html").exists()] == [Path("index")]
    assert (site / "index.html").exists()
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]* src=\"?(https?:)?//|<link[^>]* rel=\"?(?:stylesheet|preconnect)[^>]*//"
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page


def test_source_files_that_pages_link_to_are_pages_with_their_code(site: Path) -> None:
    page = (site / "source" / "examples" / "own_loop.py" / "index.html").read_text(encoding="utf-8")
    assert "open_session" in page
    assert 'href="../source/examples/own_loop.py/"' in (site / "own-loop" / "index.html").read_text(encoding="utf-8")


def test_a_link_to_what_is_not_there_is_left_for_mkdocs_to_report() -> None:
    text = "[a](gone.md) [b](../README.md#x) [c](https://example.com/a.md) [d](../plugins/status)"
    assert SITE.relinked(text, "docs/start.md") == (
        "[a](gone.md) [b](index.md#x) [c](https://example.com/a.md) [d](plugins/status.md)"
    )
