"""`check_environment` and `check_verifier`: good ones pass, and each fault is found."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hookline.rollout.errors import LessonError
from hookline.testing import check_environment, check_verifier
from hookline_hookspecs import EpisodeBatch, VerificationReport, VerificationResult, hookimpl

gymnasium = pytest.importorskip("gymnasium")
np = pytest.importorskip("numpy")
pytest.importorskip("jax")


class Walk(gymnasium.Env):
    """A walk of five steps. Subclasses have a fault each."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.integers(3)), 0
        return np.array([self.place], np.float32), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        self.place += 1.0 if action else -1.0
        return np.array([self.place], np.float32), self.reward(), self.steps >= 5, False, {}

    def reward(self) -> float:
        return 1.0


class NotANumber(Walk):
    def step(self, action: int) -> Any:
        _, *rest = super().step(action)
        return np.array([np.nan], np.float32), *rest


class Unrepeatable(Walk):
    def reward(self) -> float:
        return random.random()


def plugin_with(environments: dict[str, Any]) -> type:
    class Plugin:
        @hookimpl
        def register_environments(self) -> dict[str, Any]:
            return environments

    return Plugin


def test_a_good_environment_passes() -> None:
    check_environment(plugin_with({"walk": Walk}))


@pytest.mark.parametrize(
    ("environments", "fault"),
    [
        ({}, "register_environments returns no environment"),
        ({"walk": NotANumber}, r"the observation is \[nan\]; it must be finite numbers"),
        ({"walk": Unrepeatable}, "environment 'walk' gives other rewards? with the same seed: take all random numbers"),
    ],
)
def test_a_fault_of_an_environment_is_found(environments: dict[str, Any], fault: str) -> None:
    with pytest.raises((AssertionError, LessonError), match=fault):
        check_environment(plugin_with(environments))


def verifier(judge: Any) -> type:
    class Plugin:
        @hookimpl
        def verify_episodes(self, batch: EpisodeBatch) -> dict[str, list[VerificationReport]]:
            return {"checked": [judge(index, episode.response) for index, episode in enumerate(batch)]}

    return Plugin


def test_a_good_verifier_passes() -> None:
    check_verifier(verifier(lambda index, response: VerificationReport(score=min(1.0, len(response) / 100))))


@pytest.mark.parametrize(
    ("judge", "fault"),
    [
        (lambda index, response: VerificationReport(score=len(response)), "score"),
        (lambda index, response: VerificationReport(score=1.0 if index else 0.0), "alone, and .* among others"),
        (lambda index, response: VerificationReport(VerificationResult.PASS, 1 / len(response)), "division by zero"),
    ],
)
def test_a_fault_of_a_verifier_is_found(judge: Any, fault: str) -> None:
    with pytest.raises(Exception, match=fault):
        check_verifier(verifier(judge))
