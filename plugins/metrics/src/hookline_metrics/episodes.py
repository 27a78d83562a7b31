"""The newest episodes of a run, to read: `episodes.jsonl` in the run's folder.

A line is an episode, the newest last:

    {"step": 12, "epoch": 0, "time": 1767225600.25, "lesson": "sums",
     "turns": [{"role": "user", "text": "1+1="}, {"role": "assistant", "text": "2"}],
     "reference": "2", "reward": 1.0, "ending": "", "accepted": true, "reason": "",
     "verdicts": {"length": {"result": "pass", "score": 1.0, "message": "..."}}}

They are a sample: up to 4 episodes of a rollout, spread evenly, and of each lesson one rollout in 2 seconds. The
file has the newest ones (option `episodes`) without secrets, and is replaced atomically. Long texts are cut in the
middle: an episode has about 16,000 characters at most. `accepted` is null and `verdicts` is empty in a run without a
reward processor. `ending` says why a conversation ended, if not by its environment: a limit, a plugin or a failure. An
episode of a control environment has no text and is left out.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hookline_hookspecs import Episode
from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact
from hookline_hookspecs.sinks import Sample, Samples

__all__ = ["EPISODES", "EpisodeLog", "read_episodes"]

EPISODES: Final = "episodes.jsonl"

SAMPLE_SECONDS: Final = 2.0
"""Seconds between two rollouts of a lesson that episodes are taken from."""
SAMPLE_SIZE: Final = 4
"""How many episodes of one rollout the file has."""
SINK_SECONDS: Final = 10.0
"""Seconds between two samples for the sinks."""
MAX_CHARACTERS: Final = 16_000
"""Characters of all turns of one episode."""
MAX_TURNS: Final = 80
MAX_MESSAGE: Final = 500
"""Characters of a verifier's message."""


class Held(NamedTuple):
    """An episode, and when it was made."""

    step: int
    epoch: int | None
    lesson: str | None
    time: float
    episode: Episode


class EpisodeLog:
    """Samples episodes, for the file, which another thread writes, and for the sinks.

    In some loops the reward processor writes its results into an episode's metadata after `on_rollout_end`. So a sample
    is held until the next event that follows rewards, and only then passed to the thread that writes.

    :param limit: how many episodes the file has; 0 for no file.
    :param for_sinks: how many episodes of a rollout the sinks are given; 0 for none.
    :param pass_on: gives samples to the sinks.
    """

    def __init__(self, limit: int, for_sinks: int = 0, pass_on: Callable[[Samples], None] = lambda _: None) -> None:
        self._limit = limit
        self._for_sinks = for_sinks
        self._pass_on = pass_on
        self._sinks_due = 0.0
        self._due: dict[str | None, float] = {}
        """When the next sample of each lesson may be taken, by `time.monotonic()`."""
        self._held: list[Held] = []
        self._waiting: deque[Held] = deque(maxlen=limit)
        self._newest: deque[str] = deque(maxlen=limit)
        self._has_new = False

    # -- sampling -------------------------------------------------------------------------------------------------

    def hold(self, step: int, epoch: int | None, lesson: str | None, episodes: Sequence[Episode]) -> None:
        """Take a sample of these episodes, unless one is held or the lesson's last one was a moment ago."""
        now = time.monotonic()
        size = max(SAMPLE_SIZE if self._limit else 0, self._for_sinks)
        if not size or self._held or now < self._due.get(lesson, now):
            return
        self._due[lesson] = now + SAMPLE_SECONDS
        every = max(1, len(episodes) // size)
        texts = [own for own in episodes[::every][:size] if own.turns or own.prompt or own.response]
        if texts:
            self._held = [Held(step, epoch, lesson, time.time(), episode) for episode in texts]

    def release(self) -> None:
        """Pass on the sample that is held: its episodes are rewarded by now."""
        if not self._held:
            return
        held, self._held = self._held, []
        self._waiting.extend(held[:SAMPLE_SIZE])
        if self._for_sinks and time.monotonic() >= self._sinks_due:
            self._sinks_due = time.monotonic() + SINK_SECONDS
            episodes = tuple(Sample.of(own.episode) for own in held[: self._for_sinks])
            self._pass_on(Samples(held[0].step, held[0].lesson, episodes))

    # -- on the thread that writes --------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write the file anew if there are new episodes."""
        while self._waiting:
            self._newest.append(json.dumps(redact(_record(self._waiting.popleft()), by_names=False)))
            self._has_new = True
        if self._has_new:
            write_atomically(folder / EPISODES, "".join(f"{line}\n" for line in self._newest))
            self._has_new = False


def read_episodes(folder: Path) -> list[dict[str, Any]]:
    """The episodes in a run's folder, the newest first. Lines that are not episodes are left out."""
    try:
        text = (folder / EPISODES).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return list(_episodes_in(reversed(text.splitlines())))


def _episodes_in(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except (RecursionError, ValueError):
            continue
        if isinstance(record, dict) and isinstance(record.get("turns"), list):
            yield record


def _record(sample: Held) -> dict[str, Any]:
    episode, metadata = sample.episode, sample.episode.metadata
    accepted = metadata.get("accepted")
    return {
        "step": sample.step,
        "epoch": sample.epoch,
        "time": sample.time,
        "lesson": sample.lesson,
        "turns": _turns(episode),
        "reference": None if episode.reference is None else _cut(str(episode.reference), MAX_CHARACTERS),
        "reward": _number(metadata.get("reward", episode.reward)),
        "ending": _cut(episode.ending, MAX_MESSAGE),
        "accepted": None if accepted is None else bool(accepted),
        "reason": _cut(str(metadata.get("rejection_reason") or ""), MAX_MESSAGE),
        "verdicts": dict(_verdicts(metadata.get("verification_details"))),
    }


def _turns(episode: Episode) -> list[dict[str, str]]:
    turns = [(turn.role, turn.text) for turn in episode.turns]
    turns = turns or [("user", episode.prompt), ("assistant", episode.response)]
    if len(turns) > MAX_TURNS:
        half = MAX_TURNS // 2
        turns = [*turns[:half], ("", f"({len(turns) - MAX_TURNS} turns left out)"), *turns[-half:]]
    each = MAX_CHARACTERS // len(turns)
    return [{"role": role, "text": _cut(text, each)} for role, text in turns]


def _verdicts(details: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for verifier, report in details.items() if isinstance(details, Mapping) else ():
        if report["result"] is not None:
            message = _cut(str(report["message"]), MAX_MESSAGE)
            yield verifier, {"result": str(report["result"]), "score": _number(report["score"]), "message": message}


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _cut(text: str, limit: int) -> str:
    """The beginning and the end of a long text. The end matters: a response often has its answer there."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} […{len(text) - 2 * half:,} characters…] {text[-half:]}"
