"""The commands `hookline runs`, `hookline report` and `hookline serve`."""

from __future__ import annotations

import difflib
import json as json_format
import webbrowser
from pathlib import Path
from typing import Final

from hookline_hookspecs import HooklineError
from hookline_metrics.run_reader import RunReader, is_run, run_folders

__all__ = ["report", "runs", "serve"]

RUNS: Final = Path("runs")


def runs(run: str | None = None, /, *, diff: tuple[str, str] | None = None, json: bool = False) -> None:
    """List runs with their latest metrics, show one with its curves, or compare two.

    Parameters
    ----------
    run
        A run, as a folder or as a name in `runs/`. Or a folder of runs to list (default: `runs/`).
    diff
        Two runs (`--diff A B`): print in what they differ, in config, plugins and versions.
    json
        Print JSON.
    """
    if diff is not None:
        _print_diff(*diff, as_json=json)
        return
    from hookline_metrics.summaries import describe_run, describe_runs
    from hookline_metrics.terminal import print_run, print_runs

    folder = RUNS if run is None else _find(run)
    if is_run(folder):
        with RunReader(folder) as reader:
            if json:
                print(json_format.dumps(describe_run(reader, with_curves=True), indent=2))
            else:
                print_run(reader)
        return
    listed = describe_runs(run_folders(folder))
    if json:
        print(json_format.dumps(listed, indent=2))
    else:
        print_runs(listed, folder)


def _print_diff(first: str, second: str, *, as_json: bool) -> None:
    from hookline_metrics.run_diff import diff_lines, diff_runs

    found = diff_runs(_find(first), _find(second))
    if as_json:
        print(json_format.dumps(found, indent=2))
    else:
        print("\n".join(diff_lines(first, second, found)))


def report(run: str, /, *, output: Path | None = None, open: bool = False) -> None:
    """Write the HTML report of a run: curves, lessons, rewards, time, load and config in one file.

    Parameters
    ----------
    run
        A run, as a folder or as a name in `runs/`.
    output
        Where to write it (default: `report.html` in the run's folder).
    open
        Show it in a browser.
    """
    from hookline_metrics.report import write_report

    folder = _find(run)
    if not is_run(folder):
        raise HooklineError(f"{folder} is not the folder of a run: it has no stats.sqlite{_nearest(run)}")
    path = folder / "report.html" if output is None else output
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(folder, path)
    except OSError as error:
        raise HooklineError(
            f"the report cannot be written to {path}: {error.strerror}. Use --output to write it elsewhere"
        ) from error
    print(path)
    if open:
        webbrowser.open(path.absolute().as_uri())


def serve(runs: str | None = None, /, *, port: int = 8420, open: bool = False) -> None:
    """Show runs in a browser, as they go on: curves, comparison, lessons, episodes, failures and config.

    Only this machine can connect, with the token in the URL that is printed. Ctrl-C ends it.

    Parameters
    ----------
    runs
        A folder of runs (default: `runs/`). Or one run, as a folder or as a name in `runs/`.
    port
        The port to listen on; 0 for a free one.
    open
        Show it in a browser.
    """
    from hookline_metrics.serve import RunServer

    with RunServer(RUNS if runs is None else _find(runs), port) as server:
        print(server.url, flush=True)
        if open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def _find(run: str) -> Path:
    for folder in (Path(run), RUNS / run):
        if folder.is_dir():
            return folder
    raise HooklineError(f"there is no run {run!r}: no such folder, and none of that name in {RUNS}/{_nearest(run)}")


def _nearest(run: str) -> str:
    beside = Path(run).parent
    known = [path.name for path in run_folders(RUNS)]
    if beside != Path():
        known += [str(path) for path in run_folders(beside)]
    matches = difflib.get_close_matches(run, known, n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
