"""What a resumed run needs besides policy and optimizers.

stable-baselines3 has no resume of its own: `model.save()` keeps neither generators nor the replay buffer. So the
checkpoints of hookline-checkpoint are those of the run, and hold

    exactly     policy with target networks, all optimizers, SAC's entropy coefficient, timesteps, updates, exploration
                rate and progress (from which schedules are computed), the statistics of the latest episodes and of
                `VecNormalize`, the noise of gSDE, and the generators of Python, NumPy, torch and the action space
    if asked    the replay buffer (`save_replay_buffer=True`). Without it a resumed run warns, and begins with an empty
                one
    never       the inner state of environments, which they do not give away: new episodes begin, seeded from the
                checkpoint. A resumed run is bit-identical to one that was not stopped where each rollout ends with its
                episodes and an environment's first state is always the same; otherwise it is another sample of the
                same training. Two resumes from one checkpoint are identical.

Schedules and learning rates need the same `total_timesteps` as before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from hookline.errors import HooklineError
from hookline_hookspecs import hookimpl
from hookline_sb3.generators import restore_generators, take_generators
from hookline_sb3.optimizers import variables_of
from hookline_sb3.replay_buffer import check_can_save, restore_replay_buffer, take_replay_buffer

__all__ = ["NAME", "ResumePoint"]

logger = logging.getLogger("hookline.sb3")

NAME: Final = "sb3"
"""What the model goes by among plugins."""

COUNTERS: Final = (
    "num_timesteps",
    "_episode_num",
    "_n_updates",
    "_n_calls",
    "exploration_rate",
    "_current_progress_remaining",
)
NOISE: Final = ("exploration_mat", "exploration_matrices")


class ResumePoint:
    """Answers for the model when a checkpoint is saved or restored."""

    critical = True  # a run that goes on from half of a state is not the same run

    def __init__(self, model: Any, *, save_replay_buffer: bool) -> None:
        if save_replay_buffer:
            check_can_save(model)
        self.model = model
        self._save_replay_buffer = save_replay_buffer
        self._at_the_end: dict[str, Any] | None = None
        self._restored: Mapping[str, Any] | None = None

    # -- saving ---------------------------------------------------------------------------------------------------

    def is_learning(self) -> None:
        self._at_the_end = None

    def has_learned(self) -> None:
        """Keep the state of the last epoch's end: what follows it until the run ends is not part of training."""
        self._at_the_end = self._at_the_end or self._take()

    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return self._at_the_end or self._take()

    def _take(self) -> dict[str, Any]:
        model = self.model
        taken: dict[str, Any] = {
            "algorithm": type(model).__name__,
            "counters": {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
            "variables": variables_of(model),
            "episodes": [{name: float(own[name]) for name in ("r", "l", "t")} for own in model.ep_info_buffer],
            "successes": [float(own) for own in model.ep_success_buffer],
            "noise": {name: getattr(_noise_of(model), name) for name in NOISE} if model.use_sde else {},
            "normalization": {name: dict(vars(own)) for name, own in _statistics_of(model).items()},
            "generators": take_generators(model),
        }
        if self._save_replay_buffer:
            taken["replay_buffer"] = take_replay_buffer(model.replay_buffer)
        return taken

    # -- restoring ------------------------------------------------------------------------------------------------

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        model, taken = self.model, saved.get(NAME)
        if taken is None:
            raise HooklineError("the checkpoint is not one of stable-baselines3: give the run another folder")
        if taken["algorithm"] != type(model).__name__:
            raise HooklineError(
                f"the checkpoint is one of {taken['algorithm']}, and the model is a {type(model).__name__}: "
                "make the model as before, or give the run another folder"
            )
        for name, value in taken["counters"].items():
            setattr(model, name, value)
        model._num_timesteps_at_start = model.num_timesteps
        with torch.no_grad():
            for name, variable in variables_of(model).items():
                variable.copy_(taken["variables"][name])
        model.ep_info_buffer.extend(taken["episodes"])
        model.ep_success_buffer.extend(taken["successes"])
        self._restore_replay_buffer(taken)
        self._restored = taken

    def _restore_replay_buffer(self, taken: Mapping[str, Any]) -> None:
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if "replay_buffer" in taken:
            restore_replay_buffer(buffer, taken["replay_buffer"])
        elif buffer is not None:
            logger.warning(
                "the checkpoint has no replay buffer, so the run goes on with an empty one: "
                "HooklineCallback(save_replay_buffer=True) has it saved"
            )

    def begin_rollout(self) -> None:
        """Begin new episodes, and put noise and generators where they stood, before the first rollout after a resume.

        Not when the rest is restored: stable-baselines3 draws noise before it says that a rollout begins, and the
        checkpoint was saved at this same place.
        """
        taken, self._restored = self._restored, None
        if taken is None:
            return
        model = self.model
        _begin_new_episodes(model, taken)
        for name, value in taken["noise"].items():
            setattr(_noise_of(model), name, value.to(model.device))
        restore_generators(model, taken["generators"])


def _begin_new_episodes(model: Any, taken: Mapping[str, Any]) -> None:
    seeds = np.random.RandomState()
    seeds.set_state(taken["generators"]["numpy"])
    model.env.seed(int(seeds.randint(2**31)))
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.env.num_envs, dtype=bool)
    for name, own in _statistics_of(model).items():  # which the reset has added to
        vars(own).update(taken["normalization"][name])
    normalized = model.get_vec_normalize_env()
    if normalized is not None:
        model._last_original_obs = normalized.get_original_obs()
    if normalized is not None and normalized is model.env:
        model._last_obs = normalized.normalize_obs(model._last_original_obs)


def _noise_of(model: Any) -> Any:
    """The distribution that gSDE explores with."""
    return getattr(model.policy, "action_dist", None) or model.actor.action_dist


def _statistics_of(model: Any) -> dict[str, RunningMeanStd]:
    """The running means of `VecNormalize`, by name; none where there is no such environment."""
    normalized = model.get_vec_normalize_env()
    if normalized is None:
        return {}
    observations = getattr(normalized, "obs_rms", None)
    by_key = observations if isinstance(observations, dict) else {"": observations}
    found = {f"observations/{key}": own for key, own in by_key.items() if own is not None}
    return {**found, "returns": normalized.ret_rms}
