"""The page of a run: written as one self-contained HTML file, and shown live by `hookline serve`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from html import escape
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact, redact_text
from hookline_metrics.durations import format_age, format_duration, format_time
from hookline_metrics.report.scales import format_number
from hookline_metrics.report.sections import sections
from hookline_metrics.run_reader import RunReader
from hookline_metrics.summaries import headline

__all__ = ["asset", "document", "run_page", "state_badge", "write_report"]


def write_report(folder: Path, output: Path) -> None:
    """Write the report of the run in `folder`. The file is replaced atomically."""

    def relative_link(replay: Path) -> str:
        # It breaks if the report is moved.
        return quote(os.path.relpath(replay, output.parent).replace(os.sep, "/"), errors="surrogateescape")

    with RunReader(folder) as run:
        content = run_page(run, relative_link)
    style, script = f"<style>\n{asset('page.css')}</style>", f"<script>\n{asset('page.js')}</script>"
    write_atomically(output, document(folder.resolve().name, content, head=style, foot=script))


def document(title: str, content: str, *, head: str, foot: str, navigation: str = "") -> bytes:
    """A whole HTML document."""
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · Hookline</title>\n{head}\n</head>\n"
        f"<body>\n{navigation}<main>\n{content}\n</main>\n{foot}\n</body>\n</html>\n"
    )
    return page.encode(errors="replace")  # a text may have a lone surrogate


def asset(name: str) -> str:
    """A style sheet or script of the page."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def run_page(run: RunReader, replay_link: Callable[[Path], str]) -> str:
    """All that there is to see of a run.

    :param replay_link: the URL of a file in `replays/`.
    """
    return "\n".join([_header(run), *_body(run, replay_link)])


def state_badge(state: str) -> str:
    return f'<span class="state {state}">{state}</span>'


def _header(run: RunReader) -> str:
    facts = []
    if run.task is not None:
        facts.append(f"task {escape(run.task)}")
    if run.started is not None and run.updated is not None:
        facts += [f"began {format_time(run.started)}", f"took {format_duration(run.updated - run.started)}"]
    if run.state in ("running", "stopped") and run.heartbeat_age is not None:
        facts.append(f"last heartbeat {format_age(run.heartbeat_age)} before this report")
    message = ""
    if run.state == "failed" and run.status and run.status.get("message"):
        message = f'<p class="message">{escape(redact_text(str(run.status["message"])))}</p>'
    return (
        f'<header id="header"><h1>{escape(run.folder.resolve().name)} {state_badge(run.state)}</h1>'
        f"<p>{' · '.join(facts)}</p>{message}{_tiles(run)}</header>"
    )


def _tiles(run: RunReader) -> str:
    epochs = {} if run.epoch is None else {"epochs": float(run.epoch + 1)}
    tiles = {**headline(run), **epochs, "gradient steps": float(run.step)}
    cells = []
    for label, value in tiles.items():
        shown = f"{value:.0%}" if label == "success" else format_number(value)
        cells.append(f"<div><b>{shown}</b><span>{escape(label)}</span></div>")
    return f'<div class="tiles">{"".join(cells)}</div>'


def _body(run: RunReader, replay_link: Callable[[Path], str]) -> Iterator[str]:
    for title, cards in sections(run):
        own_id = title.lower().replace(" ", "-")
        yield f'<section id="{own_id}"><h2>{escape(title)}</h2><div class="cards">{"".join(cards)}</div></section>'
    yield from _replays(run.folder, replay_link)
    yield _latest_numbers(run)
    if run.config:
        # Hookline writes config.json without secrets, but another program may have written this one.
        config = json.dumps(redact(run.config), indent=2, ensure_ascii=False)
        yield _closed("config", "Configuration", f'<pre tabindex="0">{escape(config)}</pre>')


def _closed(own_id: str, title: str, content: str) -> str:
    return f'<section id="{own_id}"><details><summary>{title}</summary>{content}</details></section>'


def _replays(folder: Path, replay_link: Callable[[Path], str]) -> Iterator[str]:
    replays = sorted(path for path in (folder / "replays").rglob("*") if path.is_file())
    if replays:
        links = "".join(
            f'<li><a href="{replay_link(path)}">{escape(str(path.relative_to(folder / "replays")))}</a></li>'
            for path in replays
        )
        yield _closed("replays", f"Replays ({len(replays)})", f"<ul>{links}</ul>")


def _latest_numbers(run: RunReader) -> str:
    rows = []
    for name in run.names:
        value = run.last(name)
        shown = "" if value is None else format_number(value)
        rows.append(f"<tr><td>{escape(name)}</td><td>{shown}</td></tr>")
    return _closed("numbers", f"Latest numbers ({len(rows)})", f"<table><tbody>{''.join(rows)}</tbody></table>")
