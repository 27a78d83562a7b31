"""The runs in a folder: found by name, and described anew only if their files have changed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from hookline_metrics.episodes import EPISODES
from hookline_metrics.failures import FAILURES
from hookline_metrics.run_reader import ALIVE_SECONDS, is_run, run_folders
from hookline_metrics.sinks import DATABASE
from hookline_metrics.summaries import describe_folder

__all__ = ["RunIndex", "Version", "version_of"]

WATCHED: Final = (DATABASE, f"{DATABASE}-wal", "config.json", "status.json", EPISODES, FAILURES, "replays")

Version = tuple[object, ...]


def version_of(folder: Path) -> Version:
    """Changes if the run's files change, or if its heartbeat has become too old or is back."""
    return (*(_changed(folder / name) for name in WATCHED), _is_alive(folder / "heartbeat"))


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _is_alive(heartbeat: Path) -> bool:
    try:
        return time.time() - heartbeat.stat().st_mtime < ALIVE_SECONDS
    except OSError:
        return False


class RunIndex:
    """The runs in a folder, or one run.

    :param folder: a folder of runs, or the folder of a run. A folder of runs may be created later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._described: dict[Path, tuple[Version, dict[str, Any]]] = {}

    def folders(self) -> dict[str, Path]:
        """The folder of each run, by name."""
        try:
            found = [self.folder] if is_run(self.folder) else run_folders(self.folder)
        except OSError:  # it was removed a moment ago
            found = []
        return {folder.absolute().name: folder for folder in found}

    def described(self) -> list[dict[str, Any]]:
        """All runs in short, the newest first."""
        folders = self.folders()
        for gone in self._described.keys() - set(folders.values()):
            del self._described[gone]
        runs = [{**self._describe(folder), "run": name} for name, folder in folders.items()]
        # Not by the latest update, since runs that are going on would change places all the time.
        return sorted(runs, key=lambda run: (run["started"] or 0.0, run["run"]), reverse=True)

    def _describe(self, folder: Path) -> dict[str, Any]:
        version = version_of(folder)  # before reading, so that a change during it is seen next time
        known = self._described.get(folder)
        if known is None or known[0] != version:
            known = self._described[folder] = version, describe_folder(folder)
        return known[1]
