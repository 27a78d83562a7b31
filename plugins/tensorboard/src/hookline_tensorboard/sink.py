"""Writes an event file.

Records are written here and not by tensorboard's `EventFileWriter`, which has another thread and queue. Each call of
`write` is one write to the file, so that a kill or a full disk leaves whole records.
"""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from hookline_hookspecs import ReplayRecord
from hookline_hookspecs.sinks import STARTED, Report, Run, Sample, Samples, Sink, flatten, join_reports
from hookline_tensorboard.plugin import Options

__all__ = ["TensorBoardSink"]

REPLAYED: Final = 8
"""Episodes of a replay that are shown as text."""


class TensorBoardSink(Sink):
    """Writes numbers as scalars, the config as hyperparameters and text, and episodes as text."""

    def __init__(self, run: Run, options: Options) -> None:
        folder = run.folder / "tensorboard" if options.logdir is None else options.logdir / (run.run_id or "run")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._is_resumed = run.resume
        self._file = (folder / name).open("xb", buffering=0)
        self._append([Event(wall_time=time.time(), file_version="brain.Event:2")])
        if run.config:
            hyperparameters = {name: _as_hyperparameter(value) for name, value in flatten(run.config).items()}
            text = f"```\n{json.dumps(run.config, indent=2, default=str)}\n```"
            self._append(
                [_event(0, hparams_pb(hyperparameters, trial_id=run.run_id or None)), _text(0, "config", text)]
            )

    def write(self, reports: Sequence[Report]) -> None:
        start = next((own for own in reports if STARTED in own.numbers), None) if self._is_resumed else None
        events = [_scalars(report) for report in join_reports(reports)]
        if start is None:
            self._append(events)
        else:
            # Has TensorBoard drop the steps that the earlier run made after its checkpoint.
            log = SessionLog(status=SessionLog.START)
            self._append([Event(wall_time=start.time, step=start.step + 1, session_log=log), *events])
            self._is_resumed = False

    def write_samples(self, samples: Samples) -> None:
        self._write_episodes(samples.step, f"samples/{samples.lesson or 'rollout'}", samples.episodes)

    def write_replay(self, replay: ReplayRecord) -> None:
        if replay.path is not None:
            with replay.path.open(encoding="utf-8") as lines:
                records = [json.loads(line) for line in islice(lines, REPLAYED)]
            episodes = [_sample(record) for record in records if "response" in record]
            self._write_episodes(replay.step, f"replays/{replay.lesson_id or 'all'}", episodes)

    def _write_episodes(self, step: int, tag: str, episodes: Sequence[Sample]) -> None:
        if episodes:
            self._append([_text(step, tag, "\n\n---\n\n".join(own.markdown for own in episodes))])

    def close(self) -> None:
        self._file.close()

    def _append(self, events: Iterable[Event]) -> None:
        """Write all these events or none."""
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            writer.write(event.SerializeToString())
        size = self._file.tell()
        try:
            written = self._file.write(records.getbuffer())
            if written != records.tell():
                raise OSError(f"only {written} of {records.tell()} bytes were written, is the disk full?")
        except OSError:
            self._file.truncate(size)
            self._file.seek(size)
            raise


def _scalars(report: Report) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in report.numbers.items()]
    return Event(wall_time=report.time, step=report.step, summary=Summary(value=values))


def _event(step: int, summary: Summary) -> Event:
    return Event(wall_time=time.time(), step=step, summary=summary)


def _text(step: int, tag: str, text: str) -> Event:
    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    metadata = create_summary_metadata(display_name=None, description=None)
    return _event(step, Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]))


def _as_hyperparameter(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _sample(record: dict[str, Any]) -> Sample:
    messages = [(turn["role"], turn["text"]) for turn in record.get("turns", ())]
    messages = messages or [("user", record["prompt"]), ("assistant", record["response"])]
    return Sample(tuple(messages), record["reward"], record.get("verdict", {}).get("result") or "")
