"""`metrics.csv` and `metrics.jsonl` in the run's folder, for programs that cannot read SQLite.

The CSV file has the columns of the database. In JSON Lines, a line is a report:

    {"step": 12, "epoch": 0, "time": 1767225600.25, "numbers": {"train/loss": 0.5}}

NaN and infinities, which JSON does not have, are null. A resumed run appends to both files.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from typing import Final

from hookline_hookspecs.sinks import Report, Run, Sink

__all__ = ["CSVSink", "JSONLinesSink"]

COLUMNS: Final = ("step", "epoch", "name", "value", "time")


class CSVSink(Sink):
    """Writes a row for each metric."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._file = (run.folder / "metrics.csv").open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        if self._file.tell() == 0:
            self._writer.writerow(COLUMNS)

    def write(self, reports: Sequence[Report]) -> None:
        self._writer.writerows(
            (report.step, report.epoch, name, value, report.time)
            for report in reports
            for name, value in report.numbers.items()
        )
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class JSONLinesSink(Sink):
    """Writes a line for each report."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._file = (run.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def write(self, reports: Sequence[Report]) -> None:
        lines = []
        for step, epoch, numbers, time, window in reports:
            finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            line = {"step": step, "epoch": epoch, "time": time, "numbers": finite}
            lines.append(json.dumps(line if window is None else {**line, "count": window.count}) + "\n")
        self._file.writelines(lines)
        self._file.flush()

    def close(self) -> None:
        self._file.close()
