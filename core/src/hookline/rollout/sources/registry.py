"""Sources by name, and `local`, which makes rollouts in step in the trainer's thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookline.errors import did_you_mean
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.rollout.errors import RolloutError
from hookline.rollout.rng import key_of_evaluation
from hookline.rollout.sources.pooled import build_ahead, build_processes
from hookline.rollout.sources.source import RolloutSource, SourceFactory, SourceRequest
from hookline.rollout.worker import RolloutWorker
from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["LocalSource", "build_source"]


def build_source(name: str, request: SourceRequest, plugins: PluginManager) -> RolloutSource:
    """The source of this name: one of ours or of a plugin."""
    known = collect_registered(plugins, "register_sources", "a source", OWN_SOURCES)
    if name not in known:
        raise RolloutError(
            f"rollout.source: there is no source {name!r}{did_you_mean(name, known)}; known are {', '.join(known)}"
        )
    registrant, factory = known[name]
    if not callable(factory):
        raise RolloutError(f"{registrant}: the source {name!r} must be a function of a SourceRequest, not {factory!r}")
    source: RolloutSource = factory(request)
    return source


class LocalSource:
    """Makes each rollout when it is needed, with the latest weights. A resumed run continues bit for bit."""

    def __init__(self, worker: RolloutWorker) -> None:
        self._worker = worker

    def next(self, n: int) -> list[Rollout]:
        rollouts = [self._worker.rollout()]
        while len(rollouts) < n and not self._worker.is_complete:
            rollouts.append(self._worker.rollout())
        return rollouts

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        self._worker.update_weights(weights, version)

    def evaluate(
        self, request: EvaluationRequest, weights: Mapping[str, Any] | None = None
    ) -> dict[str, list[Episode]]:
        return self._worker.play(request, key_of_evaluation(request.seed), weights)

    def numbers(self) -> Mapping[str, float]:
        return {}

    def pids(self) -> list[int]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return self._worker.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._worker.load_state_dict(state)

    def close(self) -> None:
        self._worker.stop()


@dataclass
class NoOptions:
    """`local` has no options."""


def _build_local(request: SourceRequest) -> RolloutSource:
    request.read_options(NoOptions)
    if request.workers > 1:
        raise RolloutError(
            f"rollout.workers is {request.workers}, but the source 'local' makes rollouts in the trainer's thread: "
            'use rollout.source = "processes"'
        )
    return LocalSource(request.worker)


OWN_SOURCES: Final[Mapping[str, SourceFactory]] = {
    "local": _build_local,
    "ahead": build_ahead,
    "processes": build_processes,
}
