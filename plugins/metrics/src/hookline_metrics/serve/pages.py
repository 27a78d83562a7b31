"""The pages: the list of runs with their comparison, and the report of one run. No page changes anything."""

from __future__ import annotations

import hashlib
import mimetypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from hookline_hookspecs.redaction import redact, redact_text
from hookline_metrics.durations import format_time
from hookline_metrics.report.charts import line_chart
from hookline_metrics.report.comparison import Group, differences, group_curve, group_runs
from hookline_metrics.report.page import asset, document, run_page, state_badge
from hookline_metrics.report.scales import format_number
from hookline_metrics.report.sections import card
from hookline_metrics.run_reader import RunReader, Series
from hookline_metrics.serve.run_index import RunIndex, version_of
from hookline_metrics.summaries import (
    LOSSES,
    REWARDS,
    UNREADABLE_RUN,
    VALIDATION_LOSSES,
    lesson_scores,
    unreadable_message,
)

__all__ = ["Content", "Pages", "Resource"]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of a page: text of a run that got past the escaping could not run or load anything."""

REPLAY_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""That of a file in `replays/`, which any program may have written: no scripts, and an origin of its own."""

HTML: Final = "text/html; charset=utf-8"
PLAIN: Final = "text/plain; charset=utf-8"
SHOWN_AS: Final = {".html": HTML, ".json": PLAIN, ".jsonl": PLAIN, ".txt": PLAIN, ".csv": PLAIN}

HEADLINES: Final = (LOSSES, VALIDATION_LOSSES, REWARDS)
MAX_SCORES: Final = 6
"""How many lessons' success rates are compared without being asked for."""

Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Content:
    """The body of a response."""

    body: bytes
    kind: str = HTML
    status: int = 200
    policy: str = POLICY


@dataclass(frozen=True)
class Resource:
    """Something to serve, made only when it is needed."""

    version: str
    """Stays the same while the content does."""
    make: Callable[[], Content]


class Pages:
    """All that is served.

    :param folder: a folder of runs, or the folder of a run.
    """

    def __init__(self, folder: Path) -> None:
        self._runs = RunIndex(folder)
        self._making = threading.Lock()
        """Several windows must not use several cores, which a run needs."""

    def find(self, path: str, query: Query) -> Resource:
        """The resource at a path. A path that does not exist has a message that says so."""
        match path.split("/")[1:]:
            case [""]:
                folders = self._runs.folders()
                versions = [(name, version_of(folder)) for name, folder in folders.items()]
                return self._resource((query, versions), partial(self._list, query))
            case ["page.css" | "page.js" | "live.js" as file]:
                return self._resource(file, partial(_asset, file))
            case ["run", quoted, *rest]:
                name = unquote(quoted, errors="surrogateescape")
                folder = self._runs.folders().get(name)
                if folder is None:
                    return _missing(f"There is no run {name!r} (any more).")
                if not rest:
                    return self._resource((name, version_of(folder)), partial(_run, name, folder))
                if rest[0] == "replays":
                    return _replay(folder, rest[1:])
        return _missing("There is no such page.")

    def _resource(self, version: object, make: Callable[[], Content]) -> Resource:
        def make_alone() -> Content:
            with self._making:
                return make()

        return Resource(_digest(version), make_alone)

    # -- the list of runs -----------------------------------------------------------------------------------------

    def _list(self, query: Query) -> Content:
        words = " ".join(query.get("filter", ())).lower().split()
        folders = self._runs.folders()
        chosen = {name for name in query.get("run", ()) if name in folders}
        every = self._runs.described()
        # What is compared stays in the list, so that it can be taken out again.
        shown = [run for run in every if run["run"] in chosen or all(word in _searched(run) for word in words)]
        with ExitStack() as stack:
            readers = {name: reader for name in sorted(chosen) if (reader := _open(folders[name], stack)) is not None}
            names = sorted({name for reader in readers.values() for name in reader.names})
            metric = next((name for name in query.get("metric", ()) if name in names), "")
            comparison = "".join(_comparison(readers, metric))
        content = (
            f'<header id="header"><h1>Runs</h1><p>{len(shown)} of {len(every)} in {escape(str(self._runs.folder))}</p>'
            f"</header>{_choice(query, shown, chosen, names, metric)}{comparison}"
        )
        return _page("Runs", content)


def _digest(version: object) -> str:
    return hashlib.blake2s(repr(version).encode(errors="replace"), digest_size=16).hexdigest()


def _page(title: str, content: str, *, status: int = 200) -> Content:
    body = document(
        title,
        content,
        head='<link rel="stylesheet" href="/page.css">\n<link rel="icon" href="data:,">',
        foot='<script src="/page.js"></script>\n<script src="/live.js"></script>',
        navigation='<nav><a href="/">All runs</a><p id="live" role="status"></p></nav>\n',
    )
    return Content(body, status=status)


def _message(title: str, message: str) -> str:
    return f'<header id="header"><h1>{escape(title)}</h1><p class="message">{escape(redact_text(message))}</p></header>'


def _missing(message: str) -> Resource:
    return Resource(_digest(message), lambda: _page("Not found", _message("Not found", message), status=404))


def _asset(name: str) -> Content:
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return Content(asset(name).encode(), f"{kind}; charset=utf-8")


def _searched(run: Mapping[str, Any]) -> str:
    return f"{run['run']} {run['state']} {run['task'] or ''}".lower()


def _choice(
    query: Query, shown: Sequence[Mapping[str, Any]], chosen: set[str], names: Sequence[str], metric: str
) -> str:
    """The form: a filter, the metric to compare, and a table of runs to choose from."""
    if not shown and not query.get("filter"):
        how = "Start one: <code>hookline train cartpole --run-dir runs/first</code>"
        return f'<p id="choose">There are no runs here yet. {how}</p>'
    typed = escape(" ".join(query.get("filter", ())))
    options = "".join(
        f'<option id="metric-{escape(name)}" value="{escape(name)}"{" selected" if name == metric else ""}>'
        f"{escape(name)}</option>"
        for name in names
    )
    columns = list(dict.fromkeys(name for run in shown for name in run["numbers"]))
    headings = "".join(f'<th class="number">{escape(name)}</th>' for name in ("epochs", "steps", *columns))
    rows = "".join(_row(run, run["run"] in chosen, columns) for run in shown)
    return (
        '<form id="choose" action="/"><div class="controls">'
        f'<label>Filter by name, task or state<input type="search" name="filter" value="{typed}"></label>'
        '<label>Metric to compare<select name="metric"><option id="metric-" value="">the most important</option>'
        f"{options}</select></label><button>Compare</button></div>"
        '<table class="runs"><thead><tr><th></th><th>run</th><th>state</th><th>task</th><th>began</th>'
        f"{headings}</tr></thead><tbody>{rows}</tbody></table></form>"
    )


def _row(run: Mapping[str, Any], is_chosen: bool, columns: Sequence[str]) -> str:
    name, numbers = escape(run["run"]), run["numbers"]
    began = "" if run["started"] is None else format_time(run["started"])
    values = {
        "epochs": "" if run["epoch"] is None else f"{run['epoch'] + 1:,}",
        "steps": "" if run["step"] is None else f"{run['step']:,}",
        **{column: _shown(column, numbers.get(column)) for column in columns},
    }
    cells = "".join(f'<td class="number" data-label="{escape(key)}">{own}</td>' for key, own in values.items())
    row = (
        f'<tr id="run-{name}"><td><input type="checkbox" name="run" value="{name}" aria-label="compare {name}"'
        f'{" checked" if is_chosen else ""}></td><td><a href="{_address(run["run"])}">{name}</a></td>'
        f"<td>{state_badge(run['state'])}</td><td>{escape(run['task'] or '')}</td><td>{began}</td>{cells}</tr>"
    )
    if run["message"]:
        message = escape(redact_text(str(run["message"])))
        row += f'<tr class="message" id="message-{name}"><td></td><td colspan="{4 + len(values)}">{message}</td></tr>'
    return row


def _address(name: str) -> str:
    """The page of a run. The name of a folder may have bytes that are not text."""
    return f"/run/{quote(name, safe='', errors='surrogateescape')}"


def _shown(name: str, value: float | None) -> str:
    return "" if value is None else f"{value:.0%}" if name == "success" else format_number(value)


# -- comparison -------------------------------------------------------------------------------------------------------


def _open(folder: Path, stack: ExitStack) -> RunReader | None:
    try:
        reader = stack.enter_context(RunReader(folder))
        reader.names  # noqa: B018  # a damaged database is found out here
    except UNREADABLE_RUN:
        return None  # its row has the message
    return reader


def _comparison(readers: Mapping[str, RunReader], metric: str) -> Iterator[str]:
    if not readers:
        return
    groups = group_runs({name: redact(reader.config) for name, reader in readers.items()})
    cards = []
    for name in [metric] if metric else _most_important(readers.values()):
        curves = [group_curve(group.label, [_series(readers[run], name) for run in group.runs]) for group in groups]
        is_rate = name.endswith("success_rate")
        note = "mean ± std" if any(curve.spread for curve in curves) else curves[0].label if len(curves) == 1 else ""
        cards.append(card(name, line_chart(curves, y_range=(0.0, 1.0) if is_rate else None), note))
    cards += _differences(groups)
    yield f'<section id="comparison"><h2>Comparison</h2><div class="cards">{"".join(cards)}</div></section>'


def _series(reader: RunReader, name: str) -> Series:
    """One metric of a run; empty if the run has none, or none that can be read."""
    if name in reader.names:
        try:
            found = reader.series(name)
            return Series(
                name, [int(step) for step in found.steps], [float(value) for value in found.values], found.times
            )
        except UNREADABLE_RUN:
            pass  # a part of the file is damaged, or another program has written rows
    return Series(name, [], [], [])


def _most_important(readers: Iterable[RunReader]) -> list[str]:
    found = {name for reader in readers for name in reader.names}
    names = [next((name for name in choice if name in found), "") for choice in HEADLINES]
    rates = [name for lessons in lesson_scores(sorted(found)).values() for name in lessons.values()]
    return [*filter(None, names), *rates[:MAX_SCORES]]


def _differences(groups: Sequence[Group]) -> Iterator[str]:
    found = differences(groups)
    if found:
        heading = "".join(f"<th>{escape(group.label)}</th>" for group in groups)
        rows = "".join(
            f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
            for name, values in found.items()
        )
        table = f"<table><thead><tr><th>setting</th>{heading}</tr></thead><tbody>{rows}</tbody></table>"
        scrolled = f'<div class="scroll" tabindex="0" role="region" aria-label="differences">{table}</div>'
        yield card("Where their configs differ", scrolled, wide=True)


# -- one run ----------------------------------------------------------------------------------------------------------


def _run(name: str, folder: Path) -> Content:
    def replay_link(path: Path) -> str:
        inside = path.relative_to(folder / "replays").as_posix()
        return f"{_address(name)}/replays/{quote(inside, errors='surrogateescape')}"

    try:
        with RunReader(folder) as run:
            return _page(name, run_page(run, replay_link))
    except UNREADABLE_RUN as error:
        return _page(name, _message(name, unreadable_message(folder, error)))


def _replay(folder: Path, parts: Sequence[str]) -> Resource:
    """A file in `replays/`, and nothing outside of it, whatever the path and wherever links lead."""
    root = folder / "replays"
    try:
        path = root.joinpath(*(unquote(part, errors="surrogateescape") for part in parts)).resolve()
        if not path.is_relative_to(root.resolve()) or not path.is_file():
            raise FileNotFoundError
    except (OSError, RuntimeError, ValueError):  # a NUL, or links in a circle
        return _missing("There is no such replay.")
    kind = SHOWN_AS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if not kind.startswith(("text/html", "text/plain", "image/", "video/")):
        kind = "application/octet-stream"

    def make() -> Content:
        try:
            return Content(path.read_bytes(), kind, policy=REPLAY_POLICY)
        except OSError as error:
            return _page("Not found", _message("Not found", str(error)), status=404)

    return Resource(_digest((path, path.stat().st_mtime_ns)), make)
