"""Any gymnax environment is a lesson by its name. These tests run where gymnax is installed, as in `make dist`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnax", reason='pip install "hookline-environments[gymnax]"')

from hookline.policies import Continuous, Discrete
from hookline.rollout.environments.cartpole import CARTPOLE
from hookline.rollout.errors import UnknownEnvironmentError
from hookline_environments.from_gymnax import gymnax_environment


def test_a_name_is_an_environment(worker_for: Callable[..., Any]) -> None:
    worker = worker_for("gymnax:Catch-bsuite")
    assert worker.policy.actions == Discrete(3)
    rollout = worker.rollout()
    assert rollout.arrays["obs"].shape == (16, 2, 50)
    assert {episode.reward for episode in rollout.episodes} <= {-1.0, 1.0}


def test_continuous_actions_and_a_cut_that_is_no_end(worker_for: Callable[..., Any]) -> None:
    worker = worker_for("gymnax:Pendulum-v1", {"max_episode_steps": 5})
    assert worker.policy.actions == Continuous(1, (-2.0,), (2.0,))
    arrays = worker.rollout().arrays
    assert np.isfinite(arrays["logprobs"]).all()
    assert not arrays["terminated"].any()
    assert arrays["truncated"].sum() == 2 * 3


def test_gymnax_cartpole_is_ours_step_for_step() -> None:
    import jax

    ours, theirs = CARTPOLE, gymnax_environment("CartPole-v1")
    key = jax.random.key(0)
    state, obs = theirs.reset(key)
    mine, _ = ours.reset(key)
    mine = mine._replace(physics=obs)
    step_theirs, step_ours = jax.jit(theirs.step), jax.jit(ours.step)
    for action in (0, 1, 1, 0, 0, 0, 1):
        after, mine_after = step_theirs(key, state, action), step_ours(key, mine, action)
        np.testing.assert_allclose(after.obs, mine_after.obs, atol=1e-6)
        state, mine = after.state, mine_after.state


def test_an_unknown_name_is_an_error_that_names_the_nearest(worker_for: Callable[..., Any]) -> None:
    with pytest.raises(UnknownEnvironmentError, match=r"no environment 'Catch' \(did you mean 'Catch-bsuite'"):
        worker_for("gymnax:Catch")
