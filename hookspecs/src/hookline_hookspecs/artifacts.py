"""What a run leaves behind and asks for: checkpoints, replays, evaluation requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["CheckpointRecord", "EvaluationRequest", "ReplayRecord"]


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint that is durable on disk."""

    path: Path | None = None
    epoch: int = 0
    step: int = 0
    uri: str | None = None
    """Where others can fetch it, when it was uploaded."""
    size_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """The scores it was saved with; retention of the best goes by one of them."""
    fingerprint: str = ""
    """Tells its contents from all others, so that processes can say whether they mean the same."""


@dataclass(frozen=True)
class ReplayRecord:
    """Recorded episodes that a person can look at."""

    path: Path | None = None
    uri: str | None = None
    lesson_id: str | None = None
    episodes: int = 0
    """How many episodes the file holds."""
    step: int = 0


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate, and how."""

    kind: Literal["micro", "full"] = "full"
    """`micro` is a glance at the current lesson, `full` covers all lessons."""
    lessons: tuple[str, ...] = ()
    """The lessons to evaluate; empty means all."""
    n_examples: int = 64
    """Examples or episodes for each lesson."""
    greedy: bool = True
    seed: int = 0
    """Evaluation draws from this seed alone, so that it changes nothing in training."""
