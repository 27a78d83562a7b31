"""The answer to `evaluate_policy`, by stable-baselines3's own function of that name."""

from __future__ import annotations

import statistics
from typing import Any

from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization

from hookline_hookspecs import EvaluationRequest, hookimpl
from hookline_sb3.environments import copy_environment, environment_name
from hookline_sb3.generators import restore_generators, take_generators

__all__ = ["PolicyEvaluator"]


class PolicyEvaluator:
    """Plays episodes in an environment of its own.

    Whatever is drawn comes from the request's seed, and training goes on as if there had been no evaluation.

    :param environment: the user's; None for a copy of the training environment, made when it is first needed.
    """

    def __init__(self, model: Any, environment: Any = None) -> None:
        self._model = model
        self._given = environment
        self._environment: VecEnv | None = None

    @hookimpl(trylast=True)
    def evaluate_policy(self, request: EvaluationRequest) -> dict[str, float] | None:
        lesson = environment_name(self._model)
        if request.lessons and lesson not in request.lessons:
            return None
        generators = take_generators(self._model)
        try:
            set_random_seed(request.seed)
            self._model.action_space.seed(request.seed)
            returns, lengths = self._play(request)
        finally:
            restore_generators(self._model, generators)
        kind = "eval" if request.kind == "full" else "micro_eval"
        scores = {"mean_reward": statistics.fmean(returns), "mean_length": statistics.fmean(lengths)}
        if len(returns) > 1:
            scores["standard_error"] = statistics.stdev(returns) / len(returns) ** 0.5
        return {f"{kind}/{lesson}/{name}": value for name, value in {**scores, "episodes": float(len(returns))}.items()}

    def _play(self, request: EvaluationRequest) -> tuple[list[float], list[int]]:
        if self._environment is None:
            self._environment = copy_environment(self._model) if self._given is None else _as_vector(self._given)
        environment = self._environment
        environment.seed(request.seed)
        if isinstance(environment, VecNormalize):
            sync_envs_normalization(self._model.get_env(), environment)
        returns, lengths = evaluate_policy(
            self._model,
            environment,
            n_eval_episodes=request.n_examples,
            deterministic=request.greedy,
            return_episode_rewards=True,
            warn=False,
        )
        assert isinstance(returns, list)
        assert isinstance(lengths, list)
        return [float(own) for own in returns], lengths

    def close(self) -> None:
        """Close the environment, unless it is the user's."""
        if self._given is None and self._environment is not None:
            self._environment.close()


def _as_vector(environment: Any) -> VecEnv:
    return environment if isinstance(environment, VecEnv) else DummyVecEnv([lambda: environment])
