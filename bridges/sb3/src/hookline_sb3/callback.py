"""`HooklineCallback`: announces the moments of `model.learn()` to Hookline's plugins."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from hookline.errors import HooklineError
from hookline.session import Session, open_session
from hookline_hookspecs import Episode, HookContext, Rollout
from hookline_sb3.environments import environment_name
from hookline_sb3.evaluation import PolicyEvaluator
from hookline_sb3.logger_output import SessionOutput, as_numbers
from hookline_sb3.optimizers import counted_optimizer, optimizers_of
from hookline_sb3.resume_point import NAME, ResumePoint

if TYPE_CHECKING:
    from hookline.plugin_manager.settings import Settings

__all__ = ["HooklineCallback"]

logger = logging.getLogger("hookline.sb3")

HOST = "stable-baselines3"

CHANGES = ("exploration_rate", "num_timesteps", "start_time")
"""Numbers of a model that are no settings."""


class HooklineCallback(BaseCallback):
    """A run of stable-baselines3 with all installed plugins.

        with HooklineCallback("runs/cartpole") as hookline:
            model.learn(100_000, callback=hookline)

    The `with` block is needed because stable-baselines3 tells no callback of an exception: leaving the block is what
    completes the run, or fails it when an exception, Ctrl-C or SIGTERM has ended `learn()`. A callback that was not
    entered refuses to begin.

    An epoch is one rollout and the update after it, if there is one: an off-policy algorithm makes none before
    `learning_starts`. `learn()` calls no callback between an update and the next rollout, so an epoch's end is
    announced when the next rollout begins, or when `learn()` ends.

    A gradient step is one step of `policy.optimizer`, or of the critic's where there are several optimizers (SAC, TD3):
    it is the one that steps on every minibatch. `learn()` calls no callback inside an update, so the steps are seen
    through torch's own `Optimizer.register_step_pre_hook` and `register_step_post_hook`. In `on_mb_end` the gradients
    of that optimizer are alive; those that the actor has at this moment are of the minibatch before.

    The numbers of stable-baselines3's logger reach `log_metrics`: `train/...` after each update, all others when the
    logger is dumped (`log_interval`). `state.agent_step` is `model.num_timesteps`. When a plugin sets
    `state.stop_reason`, `learn()` ends after the current epoch; it takes one more environment step, of which nothing is
    learned.

    :param run_dir: the run's folder, where plugins leave their files; None for no files.
    :param resume: go on from the newest checkpoint of hookline-checkpoint in the folder. Make the model as before and
        call `learn()` once, with the same total. See `hookline_sb3.resume_point` for what is restored.
    :param save_replay_buffer: have checkpoints hold the replay buffer of an off-policy algorithm.
    :param eval_env: where the policy is evaluated. By default a copy of the training environment by its gymnasium spec.
    :param config: what else the run was told, as JSON can hold it; kept in `config.json`.
    :param plugins: plugins of your own by name, besides the installed ones.
    :param settings: which plugins are wanted, and how (default: those of this folder and environment).
    """

    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        resume: bool = False,
        save_replay_buffer: bool = False,
        eval_env: Any = None,
        config: Mapping[str, Any] | None = None,
        plugins: Mapping[str, object] | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self._run_dir = run_dir
        self._resume = resume
        self._save_replay_buffer = save_replay_buffer
        self._eval_env = eval_env
        self._config = dict(config or {})
        self._plugins = dict(plugins or {})
        self._settings = settings
        self._cleanup: ExitStack | None = None
        self._learning = ExitStack()
        self._session: Session | None = None
        self._episodes: list[Episode] = []

    # -- beginning and end ----------------------------------------------------------------------------------------

    def __enter__(self) -> HooklineCallback:
        self._cleanup = ExitStack()
        self._next_epoch = 0
        self._is_in_epoch = self._is_in_rollout = self._is_in_train_phase = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None and self._session is None:
            logger.warning("no run was recorded: learn() was not given this callback. Pass callback=hookline to it")
        cleanup, self._cleanup, self._session = self._cleanup, None, None
        assert cleanup is not None
        cleanup.__exit__(kind, error, tb)

    def _on_training_start(self) -> None:
        if self._cleanup is None:
            raise HooklineError(
                "stable-baselines3 tells no callback of an exception, so a HooklineCallback must know where its run "
                "ends: with HooklineCallback(...) as hookline: model.learn(..., callback=hookline)"
            )
        if self._session is None:
            self._session = self._open(self._cleanup)
        elif self.model is not self._resume_point.model:
            raise HooklineError("this HooklineCallback has a run of another model: give each model its own")
        elif self.model.num_timesteps < self._session.state.agent_step:
            raise HooklineError(
                "learn() would count its timesteps from 0 in the middle of a run: call it with "
                "reset_num_timesteps=False, or give it a HooklineCallback of its own"
            )
        else:
            self._session.state.total_epochs = self._total_epochs()
        self._resume_point.is_learning()
        self._attach(self._session)

    def _open(self, cleanup: ExitStack) -> Session:
        model = self.model
        self._environment = environment_name(model)
        self._resume_point = ResumePoint(model, save_replay_buffer=self._save_replay_buffer)
        evaluator = PolicyEvaluator(model, self._eval_env)
        cleanup.callback(evaluator.close)
        optimizers = optimizers_of(model)
        session = cleanup.enter_context(
            open_session(
                self._run_dir,
                policy=model.policy,
                optimizer=optimizers if len(optimizers) > 1 else next(iter(optimizers.values())),
                total_epochs=self._total_epochs(),
                config={**self._settings_of_model(), **self._config},
                resume=self._resume,
                plugins={NAME: self._resume_point, f"{NAME}-evaluator": evaluator, **self._plugins},
                settings=self._settings,
            )
        )
        cleanup.callback(self._detach)
        session.state.agent_step = model.num_timesteps
        session.state.experience = getattr(model, "rollout_buffer", None) or getattr(model, "replay_buffer", None)
        self._next_epoch = session.start_epoch
        if session.restored is not None:
            session.plugins.set_clocks(rollout=self._next_epoch)
        return session

    def _settings_of_model(self) -> dict[str, Any]:
        model = self.model
        settings = {
            name: value
            for name, value in vars(model).items()
            if isinstance(value, (bool, int, float, str)) and not name.startswith("_") and name not in CHANGES
        }
        return {
            "host": HOST,
            "algorithm": type(model).__name__,
            "environment": self._environment,
            "total_timesteps": model._total_timesteps,
            "model": settings,
        }

    def _total_epochs(self) -> int | None:
        """How many epochs there will be; None where a rollout lasts for an episode."""
        model = self.model
        frequency = getattr(model, "train_freq", None)
        if isinstance(model, OnPolicyAlgorithm):
            steps = model.n_steps
        elif isinstance(frequency, TrainFreq) and frequency.unit is TrainFrequencyUnit.STEP:
            steps = frequency.frequency
        else:
            return None
        left = model._total_timesteps - model.num_timesteps
        return self._next_epoch + max(0, math.ceil(left / (steps * model.n_envs)))

    def _attach(self, session: Session) -> None:
        """See the optimizer's steps and the logger's numbers for as long as `learn()` goes on."""
        optimizer = counted_optimizer(optimizers_of(self.model))
        self._learning.callback(optimizer.register_step_pre_hook(self._before_step).remove)
        self._learning.callback(optimizer.register_step_post_hook(self._after_step).remove)
        outputs, output = self.logger.output_formats, SessionOutput(session)
        outputs.append(output)
        self._learning.callback(outputs.remove, output)

    def _detach(self) -> None:
        self._learning.close()

    def _on_training_end(self) -> None:
        if self._is_in_rollout:  # another callback has ended learning within it
            self._end_rollout({})
        self._end_epoch()
        self._resume_point.has_learned()
        self._detach()

    # -- rollouts -------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The run. There is one from the beginning of `learn()` to the end of the `with` block."""
        assert self._session is not None
        return self._session

    def _on_rollout_start(self) -> None:
        self._end_epoch()
        if self.session.should_stop():
            self._resume_point.has_learned()
            return
        self._resume_point.begin_rollout()
        self.session.begin_epoch(self._next_epoch)
        self._is_in_epoch = True
        self._is_in_rollout = True
        self._episodes = []
        self.session.emit.on_rollout_start(context=self._context(made=self._next_epoch))

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                own = info["episode"]
                self._episodes.append(Episode(reward=float(own["r"]), metadata={"length": int(own["l"])}))
        return self._is_in_epoch

    def _on_rollout_end(self) -> None:
        self._end_rollout(_arrays_of(self.model))

    def _end_rollout(self, arrays: Mapping[str, Any]) -> None:
        self._is_in_rollout = False
        state = self.session.state
        stats = self._rollout_stats(self.model.num_timesteps - state.agent_step)
        state.agent_step = self.model.num_timesteps
        state.rollout_stats = {f"rollout/{key}": value for key, value in stats.items()}
        context = self._context(made=self._next_epoch + 1)
        context.metadata.update(stats)
        rollout = Rollout(self._environment, state.step, dict(arrays), self._episodes, stats)
        self.session.emit.on_rollout_end(context=context, rollout=rollout)

    def _rollout_stats(self, steps: int) -> dict[str, float]:
        """Of the episodes that ended in this rollout, if any did."""
        stats = {"steps": float(steps), "episodes": float(len(self._episodes))}
        if self._episodes:
            stats["mean_reward"] = sum(own.reward or 0.0 for own in self._episodes) / len(self._episodes)
            stats["mean_length"] = sum(own.metadata["length"] for own in self._episodes) / len(self._episodes)
        return stats

    def _context(self, made: int) -> HookContext:
        """:param made: how many rollouts there are; each epoch has one."""
        version = {"weights_version": self.session.state.step}
        return HookContext(self.model, made, None, self._environment, version)

    # -- updates --------------------------------------------------------------------------------------------------

    def _before_step(self, *_: object) -> None:
        if not self._is_in_train_phase:
            self._is_in_train_phase = True
            self.session.begin_train_phase()
        self.session.begin_step()
        self.session.end_minibatch()

    def _after_step(self, *_: object) -> None:
        self.session.end_step()

    def _end_epoch(self) -> None:
        if not self._is_in_epoch:
            return
        if self._is_in_train_phase:
            self._is_in_train_phase = False
            self.session.log(as_numbers(self.logger.name_to_value, of_training=True))
            self.session.end_train_phase()
        self._is_in_epoch = False
        self._next_epoch += 1
        self.session.end_epoch()


def _arrays_of(model: Any) -> dict[str, Any]:
    """The arrays of a rollout of an on-policy algorithm. Live: the update reorders them."""
    if not isinstance(model, OnPolicyAlgorithm):
        return {}
    names = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")
    return {name: getattr(model.rollout_buffer, name) for name in names}
