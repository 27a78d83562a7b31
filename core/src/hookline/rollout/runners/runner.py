"""What a worker asks of a lesson, whatever its environment is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import jax

    from hookline.policies.protocol import Actor, PolicySpecification
    from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["Runner"]

Weights = Any
"""As `Actor.load_weights` gives them."""


class Runner(Protocol):
    """Makes rollouts and evaluations of one lesson. What it keeps between rollouts is the state of its environments."""

    plays_text: bool
    """Whether the policy chooses tokens. Otherwise it chooses actions in an environment."""

    def default_policy(self) -> PolicySpecification:
        """A policy that suits the lesson."""

    def use_actor(self, actor: Actor) -> None:
        """Play with this actor from now on; raise a `PolicyError` when its policy does not suit the lesson."""

    def rollout(self, weights: Weights, key: jax.Array, version: int) -> Rollout:
        """The next rollout, going on where the last one ended.

        :param version: that of the weights.
        """

    def evaluate(self, weights: Weights, key: jax.Array, asked: EvaluationRequest) -> list[Episode]:
        """Exactly as many fresh episodes as asked for; a reward is None where a checker says that none applies.

        All that happened is kept of the first `asked.replays` ones. Responses to one problem share a `group`.
        """

    def state_dict(self) -> dict[str, Any] | None:
        """What JSON can hold of the environments' state, None when they must start anew."""

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state, or start anew."""

    def close(self) -> None:
        """Close the environments."""
