"""The job and the outcome of an evaluation outside of the training process, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.replays.records import episode_record, plain
from hookline_hookspecs import EvaluationRequest, EvaluationResult
from hookline_hookspecs.errors import shortened

__all__ = ["EvaluationJob", "EvaluationOutcome", "PendingEvaluation", "request_from_json", "request_to_json"]

MAX_EPISODES = 1_000_000
"""The upper limit of all counts in a request."""


@dataclass(frozen=True)
class EvaluationJob:
    """A checkpoint to evaluate, and the request."""

    checkpoint: Path
    epoch: int = 0
    step: int = 0
    uri: str | None = None
    request: EvaluationRequest = field(default_factory=EvaluationRequest)


@dataclass(frozen=True)
class EvaluationOutcome:
    """Scores by name, and records of episodes for a replay."""

    scores: Mapping[str, float] = field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, result: Mapping[str, float] | EvaluationResult) -> EvaluationOutcome:
        """From a result of `evaluate_policy`."""
        if isinstance(result, EvaluationResult):
            records = [episode_record(name, own) for name, episodes in result.episodes.items() for own in episodes]
            return cls(_checked_scores(result.scores), records)
        if isinstance(result, Mapping):
            return cls(_checked_scores(result))
        raise TypeError(
            f"a plugin returned a {type(result).__name__} from evaluate_policy, not a mapping of names to scores"
        )

    def to_json(self) -> dict[str, Any]:
        return {"scores": dict(self.scores), "records": list(self.records)}

    @classmethod
    def from_json(cls, data: Any) -> EvaluationOutcome:
        """Read an outcome, which may come from another machine and is checked."""
        scores = data.get("scores") if isinstance(data, dict) else None
        records = data.get("records", []) if isinstance(data, dict) else None
        if not isinstance(scores, dict):
            raise EvaluationError(f"the result of an evaluation has no scores by name: {shortened(data)}")
        if not isinstance(records, list) or not all(
            isinstance(own, dict) and isinstance(own.get("lesson"), str) for own in records
        ):
            raise EvaluationError(f"the records of an evaluation are not a list of episodes: {shortened(records)}")
        return cls(_checked_scores(scores), [plain(own) for own in records])


def _checked_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """The scores as floats. Raises an error if one is not a finite number, so that none of them is used."""
    checked: dict[str, float] = {}
    for name, value in scores.items():
        try:
            number = math.nan if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise EvaluationError(
                f"the scores of an evaluation are not used, since {str(name)!r} is {shortened(value)}: "
                "a score must be a finite number"
            )
        checked[str(name)] = number
    return checked


class PendingEvaluation(Protocol):
    """An evaluation that is running outside of this process."""

    def wait(self, seconds: float) -> bool:
        """Wait at most so long. Returns whether it has ended."""

    def outcome(self) -> EvaluationOutcome:
        """The outcome. Raises `EvaluationError` if the evaluation failed."""

    def stop(self) -> None:
        """Stop it if it is still running, and free its resources."""


def request_to_json(request: EvaluationRequest) -> dict[str, Any]:
    return asdict(request)


def request_from_json(data: Any) -> EvaluationRequest:
    """Read a request, which may come from another machine. Raises a `ValueError` that says what is wrong with it."""
    if not isinstance(data, dict):
        raise ValueError(f"a request must be an object, not {shortened(data)}")
    known = {own.name for own in fields(EvaluationRequest)}
    for name in data:
        if name not in known:
            raise ValueError(f"a request has no key {shortened(name)}; its keys are {', '.join(sorted(known))}")
    values = dict(data)
    _check(values, "kind", lambda kind: kind in ("micro", "full"), "'micro' or 'full'")
    for name in ("greedy", "held_out", "on_workers"):
        _check(values, name, lambda value: isinstance(value, bool), "true or false")
    _check(values, "lessons", _is_list_of(str), "a list of names")
    _check(values, "pass_at", _is_list_of(int), "a list of numbers")
    for name, least in {"n_examples": 1, "samples_per_problem": 1, "replays": 0, "seed": 0}.items():
        most = 2**32 - 1 if name == "seed" else MAX_EPISODES
        _check(values, name, lambda n, low=least, high=most: _is_whole(n) and low <= n <= high, f"{least} to {most}")
    most = values.get("samples_per_problem", 1)
    _check(values, "pass_at", lambda ks: all(1 <= k <= most for k in ks), f"numbers of 1 to {most}")
    for name in ("lessons", "pass_at"):
        values[name] = tuple(values.get(name, ()))
    return EvaluationRequest(**values)


def _check(values: Mapping[str, Any], name: str, is_valid: Any, expected: str) -> None:
    if name in values and not is_valid(values[name]):
        raise ValueError(f"{name} must be {expected}, got {shortened(values[name])}")


def _is_list_of(kind: type) -> Any:
    return lambda value: (
        isinstance(value, (list, tuple)) and all(isinstance(own, kind) and not isinstance(own, bool) for own in value)
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
