"""`RolloutSource`: where a trainer's rollouts come from.

A source has rollouts made in this thread, in another one, in other processes or on other machines. It announces each
one with `SourceRequest.worker`, in the thread that calls `next`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from hookline.errors import ConfigError
from hookline.option_models import validation_faults

if TYPE_CHECKING:
    from hookline.rewards import IntegratedRewardConfig
    from hookline.rollout.worker import RolloutWorker
    from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["RolloutSource", "SourceFactory", "SourceRequest"]

Options = TypeVar("Options")


class RolloutSource(Protocol):
    """Gives the trainer rollouts that were made with weights that it published.

    All methods are called from the trainer's thread. Nothing is started before the first `publish`.
    """

    def next(self, n: int) -> list[Rollout]:
        """The next `n` rollouts; fewer, but at least one, if all lessons graduate before that.

        Each has the version of the weights that it was made with. It is announced before this returns: the worker's
        `announce_start` and `announce_end` emit its events and update the curriculum. An error of a lesson is raised.
        """

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Have rollouts made with these weights from now on.

        The arrays change with the next gradient step. A source that may read them after that must copy them.

        :param version: one more than the last. A resumed run begins with the version that it ended with.
        """

    def evaluate(
        self, request: EvaluationRequest, weights: Mapping[str, Any] | None = None
    ) -> dict[str, list[Episode]]:
        """Play an evaluation, after the first `publish`. Returns its new episodes by lesson.

        All rng keys come from the request's seed, so every worker would play a lesson in the same way. Nothing is
        announced, and rollouts do not change. An error of a lesson is raised.

        :param request: names the lessons.
        :param weights: weights for this evaluation only. None for those that were published last.
        """

    def numbers(self) -> Mapping[str, float]:
        """Numbers of the latest `next`, for the metrics, such as `source/staleness`."""

    def pids(self) -> list[int]:
        """The worker processes on this machine. A source with any of them survives the death of each."""

    def state_dict(self) -> dict[str, Any]:
        """What `next` depends on besides weights, as JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, before the first `publish`."""

    def close(self) -> None:
        """End all threads and processes, in bounded time. The next `publish` starts them again."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source is built for."""

    worker: RolloutWorker
    """Draws the tasks, announces rollouts, and plays in this process."""
    rewards: IntegratedRewardConfig | None = None
    """How rollouts are rewarded where they are made. None for the lessons' own rewards."""
    workers: int = 1
    """How many workers this process has. Under torchrun it is this rank's share."""
    max_staleness: int = 1
    """How many versions a rollout's weights may be behind the latest ones."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """`rollout.source_options` of the trainer's config."""

    def read_options(self, kind: type[Options]) -> Options:
        """The options as an instance of a dataclass or pydantic model. Raises an error that lists all faults."""
        try:
            return TypeAdapter(kind).validate_python(dict(self.options), extra="forbid")
        except ValidationError as error:
            where = "rollout.source_options"
            raise ConfigError(
                validation_faults(error, kind, lambda path: ".".join([where, *map(str, path)]))
            ) from error


SourceFactory = Callable[[SourceRequest], RolloutSource]
"""Builds a source. Raises an error for options that it does not have. Starts nothing."""
