"""`RolloutWorker`: samples lessons, plays them with the current weights, and emits events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from hookline.extras import require
from hookline.hooks.hook import Hook, default_hooks
from hookline.hooks.manager import RESULTS, HookManager
from hookline.plugin_manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.policies.protocol import PolicyError
from hookline.policies.weights import check_weights
from hookline.rollout.buffer import RolloutBuffer
from hookline.rollout.config import RolloutWorkerConfig, check_config, find_tokenizer
from hookline.rollout.curriculum import Curriculum
from hookline.rollout.engines.engine import EngineRequest, RolloutEngine
from hookline.rollout.engines.registry import build_engine
from hookline.rollout.rng import key_for, key_of_step, keys_of_step
from hookline.rollout.scores import LessonScores, score_evaluation, success_rates
from hookline.rollout.tracker import Tracker
from hookline_hookspecs import Episode, EvaluationRequest, EvaluationResult, HookContext, Rollout, TrainerState, Turn

if TYPE_CHECKING:
    from hookline.policies.protocol import Actor
    from hookline.rollout.runners.runner import Runner

__all__ = ["RolloutWorker"]


class RolloutWorker:
    """Makes rollouts and evaluations.

    :param plugins: the plugin manager that receives the events, such as the trainer's. None for a new one.
    :param run_state: the trainer's state, for evaluation events. None for a new one.
    """

    def __init__(
        self,
        config: RolloutWorkerConfig | None = None,
        plugins: PluginManager | None = None,
        *,
        run_state: TrainerState | None = None,
    ) -> None:
        self.config = config = config or RolloutWorkerConfig()
        check_config(config)
        jax = require("jax", "a rollout worker")
        require("numpy", "a rollout worker")
        if config.compilation_cache is not None:
            jax.config.update("jax_compilation_cache_dir", str(config.compilation_cache))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        self.plugins = plugins or PluginManager(rank=config.worker_index)
        self.run_state = run_state or TrainerState()
        self.tracker = Tracker()
        self.curriculum = Curriculum(config.curriculum_config)
        self.step = 0
        """Rollouts made so far."""
        self.lesson_id: str | None = None
        """The lesson of the latest rollout."""
        self.weights_version = 0
        self.tokenizer = find_tokenizer(config)
        self._runners = self._build_runners()
        self._policy: Any = config.policy or next(iter(self._runners.values())).default_policy()
        self._weights: Any = None
        """The latest weights. For text, None until the first update."""
        self._engine: RolloutEngine | None = None
        if not self.plays_text:
            from hookline.policies.actor_jax import JaxActor

            self.use_actor(JaxActor(self._policy))
        self._key = key_of_step(jax.random.key(config.seed), config.worker_index)
        self._buffer = RolloutBuffer(config.max_staleness, config.max_waiting)
        self._last_rewards: dict[str, float] = {}
        self._own_scores: Mapping[str, float] = {}
        self._running = False
        self._hooks = HookManager(self.plugins)
        for hook in default_hooks(config.curriculum_config):
            self.register_hook(hook)

    def _build_runners(self) -> dict[str, Runner]:
        from hookline.rollout.runners.runner import build_runner

        registered = collect_registered(self.plugins, "register_environments", "an environment")
        found = {name: own.value for name, own in registered.items()}
        lessons = self.curriculum.lessons.items()
        return {
            name: build_runner(lesson, self.config, self.tokenizer, found, self._announce_turn)
            for name, lesson in lessons
        }

    # -- the policy -----------------------------------------------------------------------------------------------

    def use_actor(self, actor: Actor) -> None:
        """Play all environments with this actor, starting from its initial weights."""
        for runner in self._runners.values():
            runner.use_actor(actor)
        self._actor = actor
        self._policy = actor.policy
        self._weights = actor.initial_weights(self.config.seed)

    def use_module(self, module: Any, device: str = "auto") -> None:
        """Generate the responses of text lessons with a torch module, whose weights the engine may read in place.

        The config's policy, if there is one, describes the module. Otherwise its `specification` does.
        """
        if self.config.policy is None:
            self._policy = getattr(module, "specification", None)
        self._build_engine(module, device)

    @property
    def engine(self) -> RolloutEngine:
        """The engine of all text lessons. It is built when it is first used."""
        return self._engine or self._build_engine()

    def _build_engine(self, module: Any = None, device: str = "auto") -> RolloutEngine:
        self._request = EngineRequest(self._policy, module, self.config.precision, device, self.config.seed)
        engine = build_engine(self.config.engine, self._request, self.plugins)
        size, has_own = self.tokenizer.size, self.config.tokenizer is None and hasattr(self._policy, "tokenizer")
        # Hugging Face models often have more tokens than their tokenizers.
        if engine.vocabulary < size or (engine.vocabulary > size and not has_own):
            raise PolicyError(f"the tokenizer has {size} tokens, the policy {engine.vocabulary}")
        engine.update_weights({}, self.weights_version)
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

    # -- hooks in the class style ---------------------------------------------------------------------------------

    def register_hook(self, hook: Hook) -> None:
        """Call a hook after every rollout, from the next one on."""
        self._hooks.register_hook(hook)

    def unregister_hook(self, hook: Hook) -> bool:
        """Remove a hook. Returns whether it was registered."""
        return self._hooks.unregister_hook(hook)

    def clear_hooks(self) -> None:
        """Remove all hooks, including those for evaluation. Plugins stay."""
        self._hooks.clear_hooks()

    def get_hooks(self) -> list[Hook]:
        """The hooks in the order of their registration."""
        return self._hooks.get_hooks()

    # -- rollouts -------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all lessons have graduated."""
        return self.curriculum.is_complete

    def run(self, steps: int | None = None) -> None:
        """Make rollouts for `take_rollouts`, until all lessons have graduated or `steps` are made."""
        was_running = self._running
        self.start()
        try:
            made = 0
            while not self.is_complete and (steps is None or made < steps):
                self._buffer.add(self.rollout())
                made += 1
        finally:
            if not was_running:
                self.stop()

    def rollout(self) -> Rollout:
        """Make one rollout and return it."""
        self.start()
        keys = keys_of_step(self._key, self.step)
        lesson_id = self.lesson_id = self.curriculum.sample(float(keys.lesson))
        context = self._lesson_context(keys.on_rollout_start, lesson_id)
        self.plugins.emit.on_rollout_start(context=context)
        policy = self.engine if self.plays_text else self._weights
        rollout = self._runners[lesson_id].rollout(policy, keys.rollout, self.weights_version)
        self.step += 1
        if "mean_reward" in rollout.stats:
            self._last_rewards[lesson_id] = rollout.stats["mean_reward"]
        self.curriculum.record_training(lesson_id, [episode.reward for episode in rollout.episodes])
        self.tracker.log({f"rollout/{lesson_id}/{name}": v for name, v in rollout.stats.items()}, step=self.step)
        self._update_curriculum()
        context = self._lesson_context(keys.on_rollout_end, lesson_id, rollout.stats)
        context.metadata[RESULTS] = {}  # set before the event, so that background hooks have it in their copy
        self.plugins.emit.on_rollout_end(context=context, rollout=rollout)
        return rollout

    def take_rollouts(self) -> list[Rollout]:
        """Remove and return the rollouts of `run`, oldest first, without stale ones."""
        return self._buffer.take()

    @property
    def dropped_rollouts(self) -> int:
        """The number of rollouts dropped because their weights were too old."""
        return self._buffer.dropped_stale

    @property
    def overflowed_rollouts(self) -> int:
        """The number of rollouts dropped because more than `max_waiting` were waiting."""
        return self._buffer.dropped_full

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Load new weights, as torch, JAX or NumPy arrays by name. Rollouts that become stale are dropped."""
        if self.plays_text:
            self._load_into_engine(weights, version)
            self._weights = weights
        else:
            self._weights = self._actor.load_weights(weights)
        self.weights_version = version
        self._buffer.drop_stale(version)
        self.plugins.emit.on_weights_updated(context=self._context("on_weights_updated"), version=version)

    def _load_into_engine(self, weights: Mapping[str, Any], version: int | None) -> None:
        engine = self.engine
        check_weights(weights, self._shapes)
        engine.update_weights(weights, version)

    def start(self) -> None:
        """Emit `on_worker_start`, unless the worker is running already."""
        if not self._running:
            self._running = True
            self.plugins.emit.on_worker_start(context=self._context("on_worker_start"))

    def stop(self) -> None:
        """Emit `on_worker_stop`, if the worker is running."""
        if self._running:
            self._running = False
            self.plugins.emit.on_worker_stop(context=self._context("on_worker_stop"))

    def close(self) -> None:
        """Stop, and close the environments."""
        self.stop()
        for runner in self._runners.values():
            runner.close()

    def __enter__(self) -> RolloutWorker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(
        self,
        lessons: Sequence[str] | None = None,
        *,
        n_examples: int = 64,
        eval_type: str = "eval",
        rng: Any = None,
        greedy: bool = True,
        moves_curriculum: bool = False,
        held_out: bool = True,
    ) -> dict[str, float]:
        """Play new episodes of these lessons, or of all. Returns scores by name.

        :param n_examples: the number of episodes of each lesson.
        :param eval_type: the first part of the names of the scores, such as `eval/LESSON/success_rate`. See
            `hookline.rollout.scores` for the names.
        :param rng: a key for this evaluation alone. It does not affect training.
        :param moves_curriculum: let the scores graduate lessons.
        :param held_out: play held-out problems, if a lesson has any.
        """
        names = tuple(lessons or self.curriculum.lessons)
        kind: Literal["full", "micro"] = "full" if moves_curriculum else "micro"
        request = EvaluationRequest(kind, names, n_examples, greedy, held_out=held_out)
        self.plugins.emit.on_evaluation_start(state=self.run_state, request=request)
        key = key_for(key_of_step(self._key, self.step) if rng is None else rng, eval_type)
        scores = score_evaluation(request, self.curriculum.lessons, self.evaluate_lessons(request, key), eval_type)
        if moves_curriculum:
            for name, rate in success_rates(scores, names, eval_type).items():
                self.curriculum.record_success_rate(name, rate)
            self._update_curriculum()
        self._own_scores = scores
        self.run_state.eval_scores.update(scores)
        self.plugins.emit.on_evaluation_end(state=self.run_state, scores=scores)
        return scores

    def evaluate_lessons(
        self, request: EvaluationRequest, key: Any, weights: Mapping[str, Any] | None = None
    ) -> dict[str, dict[str, float]]:
        """The scores of an evaluation, by lesson. Emits no events.

        :param key: the rng key. Each lesson derives its own key from it.
        :param weights: weights for this evaluation only. None for the current ones.
        """
        names = request.lessons or tuple(self.curriculum.lessons)
        return {name: self._evaluate_lesson(name, request, key, weights) for name in names}

    def _evaluate_lesson(
        self, lesson_id: str, request: EvaluationRequest, rng: Any, weights: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """The scores of one lesson. Every evaluation calls this method, so tests can replace it."""
        episodes = self.play(replace(request, lessons=(lesson_id,)), rng, weights)[lesson_id]
        return LessonScores(episodes, self.curriculum.lessons[lesson_id].success_above, request.pass_at)

    def play(
        self, request: EvaluationRequest, key: Any, weights: Mapping[str, Any] | None = None
    ) -> dict[str, list[Episode]]:
        """The new episodes of an evaluation, by lesson. Emits no events.

        :param key: the rng key. Each lesson derives its own key from it.
        :param weights: weights for this evaluation only. None for the current ones.
        """
        names = request.lessons or tuple(self.curriculum.lessons)
        for name in names:
            self.curriculum.success_of(name)  # raises for an unknown lesson
        with self._playing_with(weights) as policy:
            return {name: self._runners[name].evaluate(policy, key_for(key, name), request) for name in names}

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
                self.engine.update_weights(training, self.weights_version)

    def answer_evaluation(self, request: EvaluationRequest, weights: Mapping[str, Any]) -> EvaluationResult:
        """The result for `evaluate_policy`, with all rng keys from the request's seed. Emits no events.

        Two runs with the same seed are evaluated on the same problems, which are not those of training.
        """
        import jax

        evaluated = self.evaluate_lessons(request, key_for(jax.random.key(request.seed), "evaluation"), weights)
        scores = score_evaluation(request, self.curriculum.lessons, evaluated)
        played = {name: own.episodes for name, own in evaluated.items() if isinstance(own, LessonScores)}
        return EvaluationResult(scores, {name: episodes[: request.replays] for name, episodes in played.items()})

    def heed_evaluation(self, scores: Mapping[str, float]) -> None:
        """Let the scores of a full evaluation graduate lessons.

        Does nothing if `heeds_evaluations` is off, or if the scores are the worker's own, which are already counted.
        """
        heeds = self.curriculum.config.heeds_evaluations and scores is not self._own_scores
        rates = success_rates(scores, self.curriculum.lessons) if heeds else {}
        for name, rate in rates.items():
            self.curriculum.record_success_rate(name, rate)
        if rates:
            self._update_curriculum()

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The worker's state without the weights, as JSON-compatible data.

        Gymnasium environments cannot be saved. Their lessons continue with new episodes.
        """
        import jax

        return {
            "key": jax.random.key_data(self._key).tolist(),
            "step": self.step,
            "weights_version": self.weights_version,
            "curriculum": self.curriculum.state_dict(),
            "environments": {name: runner.state_dict() for name, runner in self._runners.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Load the weights of its version with `update_weights`."""
        import jax

        self.curriculum.load_state_dict(state["curriculum"])
        for name, runner in self._runners.items():
            runner.load_state_dict(state["environments"].get(name))
        self._key = jax.random.wrap_key_data(jax.numpy.asarray(state["key"], "uint32"))
        self.step = state["step"]
        self.weights_version = state["weights_version"]
        self.plugins.set_clocks(rollout=self.step)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _update_curriculum(self) -> None:
        changes = self.curriculum.update()
        if changes:
            self.plugins.emit.on_curriculum_update(context=self._context("on_curriculum_update"), changes=changes)

    def _announce_turn(self, episode: Episode, turn: Turn) -> None:
        if self.plugins.hook.on_turn_end.get_hookimpls():  # making the context takes longer than most turns
            context = self._context("on_turn_end")
            context.lesson_id = self.lesson_id
            self.plugins.emit.on_turn_end(context=context, episode=episode, turn=turn)

    def _context(self, event: str) -> HookContext:
        """The context of an event that belongs to no lesson."""
        key = key_for(key_of_step(self._key, self.step), event)
        return HookContext(self, self.step, key, metadata={"weights_version": self.weights_version})

    def _lesson_context(self, key: Any, lesson_id: str, stats: Mapping[str, float] | None = None) -> HookContext:
        metadata: dict[str, Any] = {"weights_version": self.weights_version, **(stats or {})}
        metadata["performance"] = self.curriculum.success_of(lesson_id)
        if lesson_id in self._last_rewards:
            metadata["reward"] = self._last_rewards[lesson_id]
        return HookContext(self, self.step, key, lesson_id, metadata)
