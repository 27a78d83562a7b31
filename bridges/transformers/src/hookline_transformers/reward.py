"""`hookline_reward`: a reward function for TRL in which the run's reward and verifier plugins take part."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from transformers import TrainerState

from hookline.errors import HooklineError
from hookline.rewards import IntegratedRewardConfig, IntegratedRewardSystem, create_integrated_reward_system
from hookline_hookspecs import Episode, Rollout
from hookline_transformers.callback import run_of
from hookline_transformers.training_run import TrainingRun

__all__ = ["HooklineReward", "hookline_reward"]

logger = logging.getLogger("hookline.transformers")

NOT_COLUMNS: Final = ("trainer_state", "log_extra", "log_metric", "environments")
"""What TRL gives a reward function besides the dataset's columns."""

BOUNDS: Final = ("min_reward_threshold", "verification_threshold")


def hookline_reward(config: IntegratedRewardConfig | None = None, *, reference: str = "reference") -> HooklineReward:
    """A reward function for `GRPOTrainer(reward_funcs=...)`, which also announces each generation as a rollout.

    :param config: rewards, verification and bounds. A completion that is rejected has no reward: it is not trained on,
        and does not count in the mean and std of its group.
    :param reference: the dataset's column with the expected answer. All other columns are metadata of the episode.
    """
    return HooklineReward(config or IntegratedRewardConfig(), reference)


class HooklineReward:
    """What `hookline_reward` returns. TRL logs it by the name `hookline`."""

    __name__ = "hookline"

    def __init__(self, config: IntegratedRewardConfig, reference: str) -> None:
        self._config = config
        self._reference = reference
        self._run: TrainingRun | None = None
        self._system: IntegratedRewardSystem | None = None

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] = (),
        trainer_state: TrainerState | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """One reward for each completion, None where there is none."""
        columns = {name: column for name, column in columns.items() if name not in NOT_COLUMNS}
        episodes = self._episodes(prompts, completions, completion_ids, columns)
        run = run_of(trainer_state)
        system = self._system_of(run)
        if run is None or not run.is_generating:
            return [_known(reward) for reward in system.processor.process_episode_rewards(episodes).tolist()]
        rollout = Rollout(episodes=episodes, stats=_statistics(episodes))
        run.end_rollout(rollout)
        system.process_episodes(episodes)
        run.kept["bounds"] = {name: getattr(system.filter, name) for name in BOUNDS}
        rewards = [_known(episode.reward) if episode.metadata["accepted"] else None for episode in episodes]
        given = [reward for reward in rewards if reward is not None]
        rollout.stats["acceptance_rate"] = sum(own.metadata["accepted"] for own in episodes) / max(len(episodes), 1)
        if given:
            rollout.stats["mean_reward"] = sum(given) / len(given)
        run.end_rewards(rollout.stats)
        return rewards

    def _episodes(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> list[Episode]:
        references = columns.get(self._reference)
        return [
            Episode(
                prompt=_text(prompt),
                response=_text(completion),
                reference=None if references is None else _reference_text(references[index]),
                arrays={"completion_ids": completion_ids[index]} if completion_ids else {},
                metadata={name: column[index] for name, column in columns.items() if name != self._reference},
            )
            for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]

    def _system_of(self, run: TrainingRun | None) -> IntegratedRewardSystem:
        """The reward system with the plugins of this run, or with the installed verifiers where there is no run."""
        if self._system is None or self._run is not run:
            if self._system is not None:
                self._system.close()
            self._run = run
            self._system = create_integrated_reward_system(self._config) if run is None else self._join(run)
        return self._system

    def _join(self, run: TrainingRun) -> IntegratedRewardSystem:
        plugins, config = run.session.plugins, self._config
        if any(isinstance(own, IntegratedRewardSystem) for own in plugins.get_plugins()):
            raise HooklineError("a trainer has one hookline_reward: rewards of plugins are weighed within it")
        if config.target_acceptance_rate is not None and run.session.state.world_size > 1:
            raise HooklineError(
                "target_acceptance_rate moves the bounds of each rank by its own completions, and the trainer's "
                "checkpoint has those of rank 0: leave it out where there are several ranks"
            )
        if config.enable_verification and not plugins.hook.verify_episodes.get_hookimpls():
            logger.info("completions are not verified: no verifier is active. pip install hookline-verifiers")
            config = replace(config, enable_verification=False)
        system = create_integrated_reward_system(config, plugins)
        run.after_session.callback(system.close)
        for name, bound in run.kept.get("bounds", {}).items():
            setattr(system.filter, name, bound)
        return system


def _text(turns: Any) -> str:
    """A prompt or a completion as text: of a conversation, the contents of its messages, a line each."""
    if isinstance(turns, str):
        return turns
    return "\n".join(_content(message.get("content")) for message in turns)


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content)  # of images there is nothing to read


def _reference_text(reference: Any) -> str | None:
    return None if reference is None else _text(reference) if isinstance(reference, list) else str(reference)


def _known(reward: float | None) -> float | None:
    return None if reward is None or math.isnan(reward) else reward


def _statistics(episodes: Sequence[Episode]) -> dict[str, float]:
    lengths = [len(own.arrays["completion_ids"]) for own in episodes if own.arrays]
    counted = {"episodes": float(len(episodes))}
    return counted | ({"mean_length": sum(lengths) / len(lengths)} if lengths else {})
