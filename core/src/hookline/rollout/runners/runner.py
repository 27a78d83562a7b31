"""`Runner`: plays one lesson. `build_runner` chooses the runner for a lesson's environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hookline.policies.protocol import Actor, ActorWeights, PolicySpecification, Tokenizer
from hookline.rollout.config import RolloutWorkerConfig
from hookline.rollout.curriculum import Lesson
from hookline.rollout.environments.jax_environment import JaxEnvironment
from hookline.rollout.environments.naming import find_environment
from hookline.rollout.errors import RolloutError
from hookline.rollout.runners.gymnasium_runner import GymnasiumRunner
from hookline.rollout.runners.jax_runner import JaxRunner
from hookline.rollout.runners.text_runner import TextRunner
from hookline.rollout.text.environment import TextEnvironment
from hookline.rollout.text.open_episode import Announce

if TYPE_CHECKING:
    import jax

    from hookline.rollout.engines.engine import RolloutEngine
    from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["Runner", "build_runner"]


class Runner(Protocol):
    """Makes rollouts and evaluations of one lesson. Between rollouts it keeps the state of its environments."""

    plays_text: bool
    """Whether the policy chooses tokens. Otherwise it chooses actions in an environment."""

    def default_policy(self) -> PolicySpecification:
        """A policy that fits the lesson."""

    def use_actor(self, actor: Actor) -> None:
        """Play with this actor from now on. Raises a `PolicyError` if its policy does not fit the lesson.

        A text lesson raises one too: it is played with an engine.
        """

    def rollout(self, policy: ActorWeights | RolloutEngine, key: jax.Array, version: int, /) -> Rollout:
        """The next rollout, which continues where the last one ended.

        :param policy: the weights for the actor; for text, the engine, which has its weights.
        :param version: the version of the weights.
        """

    def evaluate(
        self, policy: ActorWeights | RolloutEngine, key: jax.Array, request: EvaluationRequest, /
    ) -> list[Episode]:
        """Play the requested number of new episodes. A reward is None if the checker returned None.

        The first `request.replays` episodes are recorded step by step. Responses to one problem share a `group`.
        """

    def state_dict(self) -> dict[str, Any] | None:
        """The environments' state as JSON-compatible data. None if it cannot be saved."""

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore a saved state. None starts new episodes."""

    def close(self) -> None:
        """Close the environments."""


def build_runner(
    lesson: Lesson,
    config: RolloutWorkerConfig,
    tokenizer: Tokenizer,
    registered: Mapping[str, Any],
    announce: Announce | None = None,
) -> Runner:
    """The runner for a lesson's environment.

    :param registered: environments by name, from the plugins' `register_environments`.
    :param announce: tells plugins of each turn of a text rollout.
    """
    environment = lesson.environment
    name = environment if isinstance(environment, str) else getattr(environment, "__name__", type(environment).__name__)
    if isinstance(environment, str):
        environment = find_environment(environment, lesson.options, registered)
    if isinstance(environment, TextEnvironment) and not isinstance(environment, type):
        return TextRunner(lesson, environment, tokenizer, config.num_environments, config.sampling, announce)
    if isinstance(environment, JaxEnvironment):
        return JaxRunner(lesson, environment, config.num_environments, config.steps_per_rollout)
    if callable(environment):
        return GymnasiumRunner(lesson, name, environment, config.num_environments, config.steps_per_rollout)
    raise RolloutError(
        f"lesson {lesson.lesson_id!r}: an environment is a name, a JaxEnvironment, a TextEnvironment such as TextTask, "
        f"or a function that returns a Gymnasium environment, not {environment!r}"
    )
