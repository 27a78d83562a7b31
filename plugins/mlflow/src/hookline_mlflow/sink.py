"""Writes to an MLflow run by `MlflowClient`, so that an active run of the user's own is not touched."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException

from hookline_hookspecs import CheckpointRecord, ReplayRecord
from hookline_hookspecs.sinks import Report, Run, Samples, Sink, flatten, join_reports
from hookline_mlflow.plugin import Options

__all__ = ["MLflowSink"]

MAX_METRICS: Final = 1000
MAX_PARAMS: Final = 100
"""What one call of `log_batch` may have."""
MAX_NAME: Final = 250
MAX_VALUE: Final = 6000
STATUSES: Final = {"run/completed": "FINISHED", "run/failed": "FAILED"}


class MLflowSink(Sink):
    """Logs numbers and parameters, and everything else as artifacts of the run."""

    def __init__(self, run: Run, options: Options) -> None:
        self._options = options
        self._client = MlflowClient(tracking_uri=options.tracking_uri)
        self._status = "KILLED"
        self._latest: CheckpointRecord | None = None
        earlier = run.earlier_id("mlflow")
        if earlier is not None and self._exists(earlier):
            self._id = earlier
            self._client.update_run(self._id, RunStatus.to_string(RunStatus.RUNNING))
        else:
            self._id = self._client.create_run(self._experiment(), run_name=run.run_id or None).info.run_id
            run.keep_id("mlflow", self._id)
            self._log_params(run)
        self._client.log_text(self._id, json.dumps(run.config, indent=2, default=str), "config.json")

    def _exists(self, run_id: str) -> bool:
        try:
            self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._options.experiment)
        experiment: str = found.experiment_id if found else self._client.create_experiment(self._options.experiment)
        return experiment

    def _log_params(self, run: Run) -> None:
        params = [Param(_valid_name(name), str(value)[:MAX_VALUE]) for name, value in flatten(run.config).items()]
        for part in _parts(params, MAX_PARAMS):
            self._client.log_batch(self._id, params=part)

    def write(self, reports: Sequence[Report]) -> None:
        metrics = [
            Metric(_valid_name(name), value, int(report.time * 1000), report.step)
            for report in join_reports(reports)
            for name, value in report.numbers.items()
        ]
        for part in _parts(metrics, MAX_METRICS):
            self._client.log_batch(self._id, metrics=part)
        for report in reports:
            for name in STATUSES.keys() & report.numbers.keys():
                self._status = STATUSES[name]

    def write_samples(self, samples: Samples) -> None:
        text = "\n\n---\n\n".join(own.markdown for own in samples.episodes)
        self._client.log_text(self._id, text, f"samples/step-{samples.step:06d}.md")

    def write_replay(self, replay: ReplayRecord) -> None:
        if replay.path is not None:
            for path in (replay.path, replay.path.with_suffix(".html")):
                self._client.log_artifact(self._id, str(path), "replays")

    def write_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        self._latest = checkpoint
        if self._options.checkpoints == "all":
            self._store(checkpoint)

    def close(self) -> None:
        if self._latest is not None and self._options.checkpoints == "last":
            self._store(self._latest)
        self._client.set_terminated(self._id, self._status)

    def _store(self, checkpoint: CheckpointRecord) -> None:
        if checkpoint.path is not None:
            self._client.log_artifacts(self._id, str(checkpoint.path), f"checkpoints/{checkpoint.path.name}")


def _valid_name(name: str) -> str:
    """The name with only the characters that MLflow allows. It reads a name as a path, too."""
    name = re.sub(r"[^\w.\- :/]", "_", name)
    is_path = posixpath.normpath(name) == name and not name.startswith(("/", ".."))
    return (name if is_path else name.replace("/", "_").replace("..", "_"))[:MAX_NAME]


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
