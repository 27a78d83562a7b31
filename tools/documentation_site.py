"""What the documentation site has beside docs/, as a hook of mkdocs (`mkdocs.yml`).

READMEs and other pages of the repository are pages of the site, where they are, without a copy in docs/. A source file
that a page links to becomes a page with its code. Links between them work in the repository and on the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]

OUTSIDE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "measurements.md",
    "examples/third_party_plugin/README.md": "source/third-party-plugin.md",
}
"""Pages of the repository that are not in docs/, and their names on the site."""

LANGUAGES: Final = {".py": "python", ".toml": "toml", ".md": "markdown", ".json": "json", ".yml": "yaml"}
LINK: Final = re.compile(r"(?<=\]\()([^)\s#]+)")


def pages(root: Path = ROOT) -> dict[str, str]:
    """All pages: the path of each in the repository, and its name on the site."""
    found = {f"docs/{file.name}": file.name for file in sorted(root.glob("docs/*.md"))}
    for folder in ("plugins", "bridges"):
        for file in sorted(root.glob(f"{folder}/*/README.md")):
            found[f"{folder}/{file.parent.name}/README.md"] = f"{folder}/{file.parent.name}.md"
    return found | OUTSIDE


def on_config(config: MkDocsConfig) -> None:
    """Fill in entries of the navigation such as `plugins/*`."""
    config.nav = _expanded(config.nav)


def _expanded(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_expanded(entry) for entry in nav]
    if isinstance(nav, dict):
        return {title: _expanded(entry) for title, entry in nav.items()}
    if str(nav).endswith("/*"):
        return [{Path(name).stem: name} for name in pages().values() if Path(name).match(nav)]
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and those of source files."""
    from mkdocs.structure.files import File

    linked: set[str] = set()
    for origin, name in pages().items():
        text = (ROOT / origin).read_text(encoding="utf-8")
        relinked(text, origin, linked.add)
        if not origin.startswith("docs/"):
            files.append(File.generated(config, name, content=text))
    for path in sorted(linked):
        files.append(File.generated(config, f"source/{path}.md", content=_source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links of a page as they are on the site."""
    origins = {name: origin for origin, name in pages().items()}
    origin = origins.get(page.file.src_uri)
    return markdown if origin is None else relinked(markdown, origin)


def relinked(text: str, origin: str, add_source: Callable[[str], None] = lambda _: None) -> str:
    """The text with links to files of the repository as links to pages of the site.

    A link to what is not there stays as it is, and mkdocs reports it.

    :param origin: the page's path in the repository.
    :param add_source: called with each file that is not a page.
    """
    known = pages()
    here = Path(known[origin]).parent

    def replace(found: re.Match[str]) -> str:
        path = os.path.normpath(Path(origin).parent / found[1])
        if "://" in found[1] or not (ROOT / path).exists():
            return found[1]
        path = f"{path}/README.md" if (ROOT / path).is_dir() else path
        if path in known:
            target = known[path]
        elif path.startswith("docs/"):
            target = path.removeprefix("docs/")  # a picture
        else:
            add_source(path)
            target = f"source/{path}.md"
        return Path(os.path.relpath(target, here)).as_posix()

    return LINK.sub(replace, text)


def _source_page(path: str) -> str:
    file = ROOT / path
    return f"# {path}\n\n~~~~~~ {LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n~~~~~~\n"
