"""`RolloutWorker`: chooses lessons, has them played with the current weights, and emits events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from hookline.hooks.hook import Hook, default_hooks
from hookline.hooks.hook_manager import RESULTS, HookManager
from hookline.plugin_manager import PluginManager
from hookline.rng_keys import key_for
from hookline.rollout.config import RolloutWorkerConfig
from hookline.rollout.curriculum import Curriculum
from hookline.rollout.lesson_player import LessonPlayer, RolloutTask
from hookline.rollout.rng import StepKeys, key_of_evaluation, key_of_step, keys_of_step
from hookline.rollout.scores import LessonScores, score_evaluation, success_rates
from hookline.rollout.tracker import Tracker
from hookline_hookspecs import Episode, EvaluationRequest, EvaluationResult, HookContext, Rollout, TrainerState

if TYPE_CHECKING:
    from hookline.rewards import IntegratedRewardSystem
    from hookline.rollout.engines.engine import RolloutEngine
    from hookline.rollout.sources import RolloutSource

__all__ = ["RolloutWorker"]


class RolloutWorker:
    """Makes rollouts and evaluations.

    A `LessonPlayer` plays. The worker has the rest: curriculum, hooks, tracker and events. In a trainer, a
    `RolloutSource` may have rollouts played elsewhere. The worker then announces them, and plays evaluations only.

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
        self.plugins = plugins or PluginManager(rank=config.worker_index)
        self.run_state = run_state or TrainerState()
        self.tracker = Tracker()
        self.curriculum = Curriculum(config.curriculum_config)
        self.step = 0
        """Rollouts made so far."""
        self.lesson_id: str | None = None
        """The lesson of the latest rollout."""
        self.weights_version = 0
        self._player = LessonPlayer(config, self.plugins, self.context)
        self._unloaded: tuple[Mapping[str, Any], int] | None = None
        self._key = self._player.key
        self._keys_of_step: tuple[int, StepKeys | None] = -1, None
        self._last_rewards: dict[str, float] = {}
        self._own_scores: Mapping[str, float] = {}
        self._running = False
        self._hooks = HookManager(self.plugins)
        for hook in default_hooks(config.curriculum_config):
            self.register_hook(hook)

    @property
    def player(self) -> LessonPlayer:
        """Plays in this process, with the latest weights."""
        if self._unloaded is not None:
            (weights, version), self._unloaded = self._unloaded, None
            self._player.load_weights(weights, version)
        return self._player

    @property
    def policy(self) -> Any:
        """The policy of all lessons: a specification or a torch module."""
        return self._player.policy

    @property
    def engine(self) -> RolloutEngine:
        """The engine of all text lessons."""
        return self.player.engine

    @property
    def plays_text(self) -> bool:
        """Whether the lessons are text lessons."""
        return self._player.plays_text

    @property
    def rewards(self) -> IntegratedRewardSystem | None:
        """Rewards and verifies text rollouts that are made in this process. None for the lessons' own rewards."""
        return self._player.rewards

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
        """Make rollouts for hooks and plugins, until all lessons have graduated or `steps` are made."""
        was_running = self._running
        self.start()
        try:
            made = 0
            while not self.is_complete and (steps is None or made < steps):
                self.rollout()
                made += 1
        finally:
            if not was_running:
                self.stop()

    def rollout(self) -> Rollout:
        """Make one rollout and return it."""
        task = self.draw_task(self.step)
        self.announce_start(task.lesson_id)
        rollout = self.player.play(task)
        self.announce_end(rollout)
        return rollout

    def draw_task(self, number: int) -> RolloutTask:
        """Sample the lesson of a rollout."""
        return RolloutTask(number, self.curriculum.sample(float(self._keys(number).lesson)))

    def announce_start(self, lesson_id: str | None) -> None:
        """Emit `on_rollout_start`.

        :param lesson_id: None where the lesson is not known yet, because several are being played.
        """
        self.start()
        self.lesson_id = lesson_id or self.lesson_id
        key = self._keys(self.step).on_rollout_start
        self.plugins.emit.on_rollout_start(context=self._lesson_context(key, lesson_id))

    def announce_end(self, rollout: Rollout) -> None:
        """Count a rollout, update the curriculum by it, and emit `on_rollout_end`."""
        lesson_id = self.lesson_id = rollout.lesson_id
        assert lesson_id is not None
        key = self._keys(self.step).on_rollout_end
        self.step += 1
        if "mean_reward" in rollout.stats:
            self._last_rewards[lesson_id] = rollout.stats["mean_reward"]
        self.curriculum.record_training(lesson_id, [episode.reward for episode in rollout.episodes])
        self.tracker.log({f"rollout/{lesson_id}/{name}": v for name, v in rollout.stats.items()}, step=self.step)
        self._update_curriculum()
        context = self._lesson_context(key, lesson_id, rollout.stats)
        context.metadata[RESULTS] = {}  # set before the event, so that background hooks have it in their copy
        self.plugins.emit.on_rollout_end(context=context, rollout=rollout)

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Load new weights, as torch, JAX or NumPy arrays by name."""
        self._player.load_weights(weights, version)
        self._unloaded = None
        self._announce_weights(version)

    def announce_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Announce weights that others play with. They are loaded here when they are needed, for an evaluation.

        :param weights: must not change any more.
        """
        self._unloaded = weights, version
        self._announce_weights(version)

    def _announce_weights(self, version: int) -> None:
        self.weights_version = version
        self.plugins.emit.on_weights_updated(context=self.context("on_weights_updated"), version=version)

    def start(self) -> None:
        """Emit `on_worker_start`, unless the worker is running already."""
        if not self._running:
            self._running = True
            self.plugins.emit.on_worker_start(context=self.context("on_worker_start"))

    def stop(self) -> None:
        """Emit `on_worker_stop`, if the worker is running."""
        if self._running:
            self._running = False
            self.plugins.emit.on_worker_stop(context=self.context("on_worker_stop"))

    def close(self) -> None:
        """Stop, and close the environments."""
        self.stop()
        self._player.close()

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
        lessons = self._with_lessons(request).lessons
        return {name: self._evaluate_lesson(name, request, key, weights) for name in lessons}

    def _evaluate_lesson(
        self, lesson_id: str, request: EvaluationRequest, rng: Any, weights: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """The scores of one lesson. Every evaluation calls this method, so tests can replace it."""
        episodes = self.play(replace(request, lessons=(lesson_id,)), rng, weights)[lesson_id]
        return self._scores_of(lesson_id, episodes, request)

    def _with_lessons(self, request: EvaluationRequest) -> EvaluationRequest:
        """The request with the names of its lessons, which are all lessons if it has none."""
        names = request.lessons or tuple(self.curriculum.lessons)
        for name in names:
            self.curriculum.success_of(name)  # raises for an unknown lesson
        return replace(request, lessons=names)

    def _scores_of(self, lesson_id: str, episodes: Sequence[Episode], request: EvaluationRequest) -> LessonScores:
        return LessonScores(episodes, self.curriculum.lessons[lesson_id].success_above, request.pass_at)

    def play(
        self, request: EvaluationRequest, key: Any, weights: Mapping[str, Any] | None = None
    ) -> dict[str, list[Episode]]:
        """The new episodes of an evaluation, by lesson. Emits no events. The arguments are as in `evaluate_lessons`."""
        return self.player.evaluate(self._with_lessons(request), key, weights)

    def answer_evaluation(
        self, request: EvaluationRequest, weights: Mapping[str, Any] | None, source: RolloutSource | None = None
    ) -> EvaluationResult:
        """The result for `evaluate_policy`, with all rng keys from the request's seed. Emits no events.

        Two runs with the same seed are evaluated on the same problems, which are not those of training.

        :param weights: weights for this evaluation only. None for the latest ones.
        :param source: plays the evaluation. None for this worker.
        """
        evaluated: dict[str, dict[str, float]]
        if source is None:
            evaluated = self.evaluate_lessons(request, key_of_evaluation(request.seed), weights)
        else:
            found = source.evaluate(self._with_lessons(request), weights)
            evaluated = {name: self._scores_of(name, episodes, request) for name, episodes in found.items()}
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
        """The worker's state without the weights, as JSON-compatible data. Rng keys come from the config's seed.

        Gymnasium environments cannot be saved. Their lessons continue with new episodes.
        """
        return {
            "step": self.step,
            "weights_version": self.weights_version,
            "curriculum": self.curriculum.state_dict(),
            **self._player.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Load the weights of its version with `update_weights`."""
        self.curriculum.load_state_dict(state["curriculum"])
        self._player.load_state_dict(state)
        self.step = state["step"]
        self.weights_version = self._player.version = state["weights_version"]
        self.plugins.set_clocks(rollout=self.step)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _keys(self, number: int) -> StepKeys:
        known, keys = self._keys_of_step
        if keys is None or known != number:
            self._keys_of_step = number, (keys := keys_of_step(self._key, number))
        return keys

    def _update_curriculum(self) -> None:
        changes = self.curriculum.update()
        if changes:
            self.plugins.emit.on_curriculum_update(context=self.context("on_curriculum_update"), changes=changes)

    def context(self, event: str) -> HookContext:
        """The context of an event that belongs to no lesson."""
        key = key_for(key_of_step(self._key, self.step), event)
        return HookContext(self, self.step, key, metadata={"weights_version": self.weights_version})

    def _lesson_context(self, key: Any, lesson_id: str | None, stats: Mapping[str, float] | None = None) -> HookContext:
        metadata: dict[str, Any] = {"weights_version": self.weights_version, **(stats or {})}
        if lesson_id is not None:
            metadata["performance"] = self.curriculum.success_of(lesson_id)
        if lesson_id in self._last_rewards:
            metadata["reward"] = self._last_rewards[lesson_id]
        return HookContext(self, self.step, key, lesson_id, metadata)
