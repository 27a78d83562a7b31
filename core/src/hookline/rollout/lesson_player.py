"""`LessonPlayer`: plays lessons with the latest weights. It makes rollouts, rewards them, and plays evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hookline.importing import require
from hookline.plugin_manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.policies.protocol import HasTokenizer, PolicyError
from hookline.policies.weights import check_weights
from hookline.rng_keys import key_for
from hookline.rollout.config import RolloutWorkerConfig, check_config, find_tokenizer
from hookline.rollout.engines.engine import EngineRequest, RolloutEngine
from hookline.rollout.engines.registry import build_engine
from hookline.rollout.errors import RolloutError
from hookline.rollout.rng import key_of_step, keys_of_step
from hookline_hookspecs import Episode, EvaluationRequest, HookContext, Rollout, Turn

if TYPE_CHECKING:
    from hookline.policies.protocol import Actor
    from hookline.rewards import IntegratedRewardConfig, IntegratedRewardSystem
    from hookline.rollout.runners.runner import Runner

__all__ = ["EvaluationTask", "LessonPlayer", "RolloutTask"]


@dataclass(frozen=True)
class RolloutTask:
    """A rollout to make. Its rng key comes from the run's seed and the number alone: it can be played again."""

    number: int
    lesson_id: str

    def __str__(self) -> str:
        return f"lesson {self.lesson_id!r}, rollout {self.number}"


@dataclass(frozen=True)
class EvaluationTask:
    """One lesson of an evaluation."""

    number: int
    """Below 0, since rollouts have the others."""
    request: EvaluationRequest
    weights: Mapping[str, Any] | None = None
    """None for the latest ones."""

    def __str__(self) -> str:
        return f"an evaluation of lesson {self.request.lessons[0]!r}"


class LessonPlayer:
    """Plays the lessons of a config. It decides nothing: which lesson is played is in the task.

    :param plugins: for environments, engines and rewards that plugins provide, and for the event of each turn.
    :param context: makes the context of an event by its name.
    """

    def __init__(
        self, config: RolloutWorkerConfig, plugins: PluginManager, context: Callable[[str], HookContext]
    ) -> None:
        check_config(config)
        self.config = config
        self._context = context
        self._lesson_id: str | None = None
        jax = require("jax", "a rollout worker")
        require("numpy", "a rollout worker")
        if config.compilation_cache is not None:
            jax.config.update("jax_compilation_cache_dir", str(config.compilation_cache))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        self.plugins = plugins
        self.rewards: IntegratedRewardSystem | None = None
        """Rewards and verifies text rollouts. None for the lessons' own rewards."""
        self.version = 0
        """The version of the weights."""
        self.module: Any = None
        """The torch module that plays. None where the config describes a policy that needs none."""
        self.device = "auto"
        """The device of that module."""
        self.key: Final = key_of_step(jax.random.key(config.seed), config.worker_index)
        """The rng key of the run, from which each task derives its own."""
        self.tokenizer = find_tokenizer(config)
        self._runners = self._build_runners()
        self._policy: Any = config.policy or next(iter(self._runners.values())).default_policy()
        self._weights: Any = None
        """The latest weights. For text, None until the first update."""
        self._engine: RolloutEngine | None = None
        if not self.plays_text:
            from hookline.policies.actor_jax import JaxActor

            self._use_actor(JaxActor(self._policy))

    def _build_runners(self) -> dict[str, Runner]:
        from hookline.rollout.runners.runner import build_runner

        registered = collect_registered(self.plugins, "register_environments", "an environment")
        found = {name: own.value for name, own in registered.items()}
        lessons = self.config.curriculum_config.lessons
        return {
            own.lesson_id: build_runner(own, self.config, self.tokenizer, found, self._announce_turn) for own in lessons
        }

    # -- the policy -----------------------------------------------------------------------------------------------

    def use_module(self, module: Any, device: str) -> None:
        """Play with a torch module: environments with a copy of it, text with an engine that may read it in place.

        For text, the config's policy describes the module. Without one, its `specification` does.
        """
        if not self.plays_text:
            from hookline.policies.actor_torch import TorchActor

            self.module, self.device = module, device
            self._use_actor(TorchActor(module, device))
            return
        if self.config.policy is None:
            self._policy = getattr(module, "specification", None)
            self.module, self.device = module if self._policy is None else None, device
        self._build_engine(module, device)

    def _use_actor(self, actor: Actor) -> None:
        for runner in self._runners.values():
            runner.use_actor(actor)
        self._actor = actor
        self._policy = actor.policy
        self._weights = actor.initial_weights(self.config.seed)

    @property
    def engine(self) -> RolloutEngine:
        """The engine of all text lessons. It is built when it is first used."""
        return self._engine or self._build_engine()

    def _build_engine(self, module: Any = None, device: str = "auto") -> RolloutEngine:
        self._request = EngineRequest(self._policy, module, self.config.precision, device, self.config.seed)
        engine = build_engine(self.config.engine, self._request, self.plugins)
        size = self.tokenizer.size
        has_own = self.config.tokenizer is None and isinstance(self._policy, HasTokenizer)
        # Hugging Face models often have more tokens than their tokenizers.
        if engine.vocabulary < size or (engine.vocabulary > size and not has_own):
            raise PolicyError(f"the tokenizer has {size} tokens, the policy {engine.vocabulary}")
        engine.update_weights({}, self.version)
        if self._policy is None:
            self._shapes = {name: tuple(own.shape) for name, own in module.state_dict().items()}
        else:
            self._shapes = self._policy.shapes()
        self._engine = engine
        return engine

    @property
    def policy(self) -> Any:
        """The policy of all lessons: a specification or a torch module."""
        return self._request.module if self._policy is None else self._policy

    @property
    def plays_text(self) -> bool:
        """Whether the lessons are text lessons. One policy plays all lessons, so they are all of one kind."""
        return all(runner.plays_text for runner in self._runners.values())

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Load new weights, as torch, JAX or NumPy arrays by name."""
        if self.plays_text:
            self._load_into_engine(weights, version)
            self._weights = weights
        else:
            self._weights = self._actor.load_weights(weights)
        self.version = version

    def _load_into_engine(self, weights: Mapping[str, Any], version: int | None) -> None:
        engine = self.engine
        check_weights(weights, self._shapes)
        engine.update_weights(weights, version)

    def use_rewards(self, config: IntegratedRewardConfig, state: Mapping[str, Any] | None = None) -> None:
        """Reward and verify text rollouts from now on.

        :param state: the thresholds to start with. None for the config's.
        """
        from hookline.rewards import create_integrated_reward_system

        if config.enable_verification and not self.plugins.hook.verify_episodes.get_hookimpls():
            raise RolloutError("the rewards verify episodes, but no verifier is active where rollouts are made")
        self.rewards = create_integrated_reward_system(config, self.plugins)
        if state:
            self.rewards.load_state_dict(state)

    # -- playing --------------------------------------------------------------------------------------------------

    def play(self, task: RolloutTask) -> Rollout:
        """Make a rollout with the latest weights."""
        self._lesson_id = task.lesson_id
        key = keys_of_step(self.key, task.number).rollout
        policy = self.engine if self.plays_text else self._weights
        rollout = self._runners[task.lesson_id].rollout(policy, key, self.version)
        if self.rewards is not None:
            accepted = self.rewards.process_rollout(rollout)
            rollout.stats["acceptance_rate"] = float(accepted.mean())
        return rollout

    def _announce_turn(self, episode: Episode, turn: Turn) -> None:
        if self.plugins.hook.on_turn_end.get_hookimpls():  # making the context takes longer than most turns
            context = self._context("on_turn_end")
            context.lesson_id = self._lesson_id
            self.plugins.emit.on_turn_end(context=context, episode=episode, turn=turn)

    def evaluate(
        self, request: EvaluationRequest, key: Any, weights: Mapping[str, Any] | None = None
    ) -> dict[str, list[Episode]]:
        """The new episodes of an evaluation, by lesson.

        :param key: the rng key. Each lesson derives its own key from it.
        :param weights: weights for this evaluation only. None for the latest ones.
        """
        with self._playing_with(weights) as policy:
            return {name: self._runners[name].evaluate(policy, key_for(key, name), request) for name in request.lessons}

    @contextmanager
    def _playing_with(self, weights: Mapping[str, Any] | None) -> Iterator[Any]:
        """The first argument of `Runner.evaluate`: an actor's weights, or the engine with these weights in it."""
        if not self.plays_text:
            yield self._weights if weights is None else self._actor.load_weights(weights)
        elif weights is None:
            yield self.engine
        else:
            self._load_into_engine(weights, None)
            try:
                yield self.engine
            finally:
                training = self._request.weights() if self._weights is None else self._weights
                self.engine.update_weights(training, self.version)

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Environments, reward thresholds and the scores that reward models remember, as JSON values and arrays.

        Gymnasium environments start new episodes.
        """
        return {
            "environments": {name: runner.state_dict() for name, runner in self._runners.items()},
            "rewards": None if self.rewards is None else self.rewards.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, runner in self._runners.items():
            runner.load_state_dict(state["environments"].get(name))
        if self.rewards is not None:
            self.rewards.load_state_dict(state["rewards"])

    def close(self) -> None:
        """Close the environments and the reward processor."""
        if self.rewards is not None:
            self.rewards.close()
        for runner in self._runners.values():
            runner.close()
