"""Writes the report of a run as one self-contained HTML file, from the run's folder alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact, redact_text
from hookline_metrics.durations import format_age, format_duration
from hookline_metrics.headline import headline
from hookline_metrics.report.scales import format_number
from hookline_metrics.report.sections import sections
from hookline_metrics.run_reader import RunReader

__all__ = ["write_report"]


def write_report(folder: Path, output: Path) -> None:
    """Write the report of the run in `folder`. The file is replaced atomically."""
    with RunReader(folder) as run:
        page = _page(run, output)
    write_atomically(output, page)


def _page(run: RunReader, output: Path) -> str:
    name = run.folder.resolve().name
    body = "\n".join([_header(run, name), *_body(run, output)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)} · Hookline</title>\n<style>\n{_file('page.css')}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _header(run: RunReader, name: str) -> str:
    facts = []
    task = run.config.get("task")
    if isinstance(task, str):
        facts.append(f"task {escape(task)}")
    if run.started is not None and run.updated is not None:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
        facts += [f"began {began}", f"took {format_duration(run.updated - run.started)}"]
    if run.state in ("running", "stopped") and run.heartbeat_age is not None:
        facts.append(f"last heartbeat {format_age(run.heartbeat_age)} before this report")
    message = ""
    if run.state == "failed" and run.status and run.status.get("message"):
        message = f'<p class="message">{escape(redact_text(str(run.status["message"])))}</p>'
    return (
        f'<header><h1>{escape(name)} <span class="state {run.state}">{run.state}</span></h1>'
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


def _body(run: RunReader, output: Path) -> Iterator[str]:
    for title, cards in sections(run):
        yield f'<section><h2>{escape(title)}</h2><div class="cards">{"".join(cards)}</div></section>'
    yield from _replays(run.folder, output)
    yield _final_numbers(run)
    if run.config:
        # Hookline writes config.json without secrets, but another program may have written this one.
        config = json.dumps(redact(run.config), indent=2, ensure_ascii=False)
        yield f"<section><details><summary>Configuration</summary><pre>{escape(config)}</pre></details></section>"


def _replays(folder: Path, output: Path) -> Iterator[str]:
    """Relative links to the replays. They break if the report is moved."""
    replays = sorted(path for path in (folder / "replays").rglob("*") if path.is_file())
    if replays:
        links = "".join(
            f'<li><a href="{quote(os.path.relpath(path, output.parent).replace(os.sep, "/"))}">'
            f"{escape(str(path.relative_to(folder / 'replays')))}</a></li>"
            for path in replays
        )
        yield f"<section><details><summary>Replays ({len(replays)})</summary><ul>{links}</ul></details></section>"


def _final_numbers(run: RunReader) -> str:
    rows = []
    for name in run.names:
        value = run.last(name)
        shown = "" if value is None else format_number(value)
        rows.append(f"<tr><td>{escape(name)}</td><td>{shown}</td></tr>")
    table = f"<table><tbody>{''.join(rows)}</tbody></table>"
    return f"<section><details><summary>Final numbers ({len(rows)})</summary>{table}</details></section>"
