"""Sinks: where the metrics, samples and files of a run are stored.

A plugin returns its sinks from `register_sinks`. The metrics plugin opens each on its own thread and passes it what the
run records, so a sink that is slow, fails or hangs delays neither training nor other sinks. docs/sinks.md shows one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from hookline_hookspecs.artifacts import CheckpointRecord, ReplayRecord
from hookline_hookspecs.episodes import Episode
from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact_text

__all__ = [
    "STARTED",
    "Report",
    "Run",
    "Sample",
    "Samples",
    "Sink",
    "SinkUnavailableError",
    "Window",
    "flatten",
    "join_reports",
]

STARTED: Final = "run/started"
"""A metric of the first report of each start. Its step is the one that training starts or resumes from."""


class SinkUnavailableError(Exception):
    """A sink cannot be used in this run and should not be tried again, for example because a package is missing."""


@dataclass(frozen=True)
class Window:
    """The spread of metrics over the reports that were condensed to one."""

    count: int
    """The number of reports."""
    low: Mapping[str, float]
    high: Mapping[str, float]


class Report(NamedTuple):
    """Metrics that were recorded together, or their means over many reports if those came too fast."""

    step: int
    epoch: int | None
    """None before the first epoch."""
    numbers: Mapping[str, float]
    time: float
    """When it was recorded, in seconds since 1970."""
    window: Window | None = None
    """For means: what they are means of. `step`, `epoch` and `time` are then those of the last report."""


class Sample(NamedTuple):
    """An episode of text."""

    messages: tuple[tuple[str, str], ...]
    """Role and text of each turn."""
    reward: float | None = None
    verdict: str = ""
    """The verifiers' result, such as `pass`; empty if there is none."""

    @classmethod
    def of(cls, episode: Episode) -> Sample:
        """The sample of an episode, without its tokens."""
        turns = [(turn.role, turn.text) for turn in episode.turns]
        messages = turns or [("user", episode.prompt), ("assistant", episode.response)]
        verdict = episode.metadata.get("verification_result") or ""
        return cls(tuple(messages), None if episode.reward is None else float(episode.reward), str(verdict))

    @property
    def markdown(self) -> str:
        """The conversation as Markdown, each turn in a block of code, as it may be Markdown itself."""
        about = [f"reward {self.reward:g}"] if self.reward is not None else []
        about += [self.verdict] if self.verdict else []
        blocks = [f"**{role}**\n\n{_code(text)}" for role, text in self.messages]
        return "\n\n".join([*blocks, *([", ".join(about)] if about else [])])


class Samples(NamedTuple):
    """Some episodes of text of one rollout."""

    step: int
    lesson: str | None
    episodes: tuple[Sample, ...]

    def redacted(self) -> Samples:
        """The same without secrets."""
        return self._replace(
            episodes=tuple(
                own._replace(messages=tuple((role, redact_text(text)) for role, text in own.messages))
                for own in self.episodes
            )
        )


@dataclass(frozen=True)
class Run:
    """The run that a sink is opened for."""

    folder: Path
    run_id: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration, without its secrets."""
    resume: bool = False
    """Whether the run may continue an earlier one in the same folder. `STARTED` tells from which step."""
    shared: dict[str, Any] = field(default_factory=dict)
    """`state.shared["metrics"]`, which other plugins can read."""

    def earlier_id(self, tracker: str) -> str | None:
        """What `keep_id` kept for this tracker, if this run continues the earlier one. None if there is nothing."""
        file = self._id_file(tracker)
        return file.read_text(encoding="utf-8") if self.resume and file.exists() else None

    def keep_id(self, tracker: str, tracker_id: str) -> None:
        """Keep a tracker's id of this run in the run's folder, so that a resumed run can continue it."""
        file = self._id_file(tracker)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, tracker_id)

    def _id_file(self, tracker: str) -> Path:
        return self.folder / "trackers" / tracker


class Sink:
    """Stores what a run records. All methods are called on the sink's own thread.

    If `write` raises, the same reports are passed again a second later, together with newer ones. The methods for
    samples and files are called once, and their errors are logged. A sink that raises `SinkUnavailableError` or
    `ImportError` is not called again. Files are complete when they are passed, but an older checkpoint may be removed
    while it is read.
    """

    def write(self, reports: Sequence[Report]) -> None:
        """Store these reports, oldest first. Reports of one step are passed in one call if possible."""
        raise NotImplementedError

    def write_samples(self, samples: Samples) -> None:
        """Store samples of text. They have no secrets."""

    def write_replay(self, replay: ReplayRecord) -> None:
        """Store a replay: `replay.path` and the page beside it."""

    def write_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Store a checkpoint: the folder `checkpoint.path`."""

    def close(self) -> None:
        """Close the sink. There are no more calls."""


def join_reports(reports: Sequence[Report], per_second: float = 50.0) -> Iterator[Report]:
    """At most so many reports for each second of the run, joined from neighbours, with the last value of each metric.

    For trackers whose work for each report would hold the GIL too long.
    """
    for _, group in groupby(reports, lambda report: int(report.time * per_second)):
        numbers: dict[str, float] = {}
        for report in group:
            numbers.update(report.numbers)
        yield report._replace(numbers=numbers)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one dictionary: `{"optimizer": {"lr": 0.1}}` is `{"optimizer.lr": 0.1}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _code(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
