"""Writes to a trackio run. trackio has a thread of its own that stores what was logged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import trackio

from hookline_hookspecs import CheckpointRecord, ReplayRecord
from hookline_hookspecs.sinks import Report, Run, Samples, Sink, flatten, join_reports
from hookline_trackio.plugin import Options

__all__ = ["TrackioSink"]


class TrackioSink(Sink):
    """Logs numbers, conversations as traces, and replays and checkpoints as artifacts."""

    def __init__(self, run: Run, options: Options) -> None:
        self._options = options
        self._latest: CheckpointRecord | None = None
        earlier = run.earlier_id("trackio")
        self._live: Any = trackio.init(
            project=options.project,
            name=earlier or run.run_id or None,
            resume="allow" if earlier else "never",
            space_id=options.space_id,
            server_url=options.server_url,
            # trackio keeps names that begin with an underscore for itself.
            config={name.lstrip("_"): value for name, value in flatten(run.config).items()},
            embed=False,
            auto_log_gpu=False,  # the metrics plugin has the system's load
            auto_log_cpu=False,
        )
        # trackio resumes by name.
        run.keep_id("trackio", self._live.name)
        # An artifact name may have letters, digits, dots, dashes and underscores.
        self._name = re.sub(r"[^\w.-]", "-", self._live.name, flags=re.ASCII)

    def write(self, reports: Sequence[Report]) -> None:
        for report in join_reports(reports):
            self._live.log(dict(report.numbers), step=report.step)

    def write_samples(self, samples: Samples) -> None:
        traces = [
            trackio.Trace(
                messages=[{"role": role, "content": text} for role, text in own.messages],
                metadata={"lesson": samples.lesson, "reward": own.reward, "verdict": own.verdict},
            )
            for own in samples.episodes
        ]
        self._live.log({f"samples/{samples.lesson or 'rollout'}": traces}, step=samples.step)

    def write_replay(self, replay: ReplayRecord) -> None:
        if replay.path is not None:
            metadata = {"step": replay.step, "episodes": replay.episodes}
            artifact = trackio.Artifact(f"{self._name}-replays", type="replay", metadata=metadata)
            for path in (replay.path, replay.path.with_suffix(".html")):
                artifact.add_file(path)
            self._live.log_artifact(artifact, aliases=[replay.path.stem])

    def write_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        self._latest = checkpoint
        if self._options.checkpoints == "all":
            self._store(checkpoint)

    def close(self) -> None:
        if self._latest is not None and self._options.checkpoints == "last":
            self._store(self._latest)
        self._live.finish()

    def _store(self, checkpoint: CheckpointRecord) -> None:
        if checkpoint.path is not None:
            metadata = {"epoch": checkpoint.epoch, "step": checkpoint.step, **checkpoint.metrics}
            artifact = trackio.Artifact(f"{self._name}-checkpoint", type="checkpoint", metadata=metadata)
            artifact.add_dir(checkpoint.path)
            self._live.log_artifact(artifact, aliases=[checkpoint.path.name])
