"""CartPole-v1 as pure functions is Gymnasium's CartPole-v1."""

from __future__ import annotations

from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline.policies import MLPPolicy, actor_jax, to_jax
from hookline.policies.actor_jax import next_values_of
from hookline.rollout.environments import cartpole
from hookline.rollout.environments.cartpole import CARTPOLE, CartPoleState
from hookline.rollout.runners.jax_runner import STRETCH, play_episodes, play_scanned
from hookline.rollout.runners.jax_scan import scan_rollout, start_environments

KEY = jax.random.key(0)


@pytest.fixture
def policy() -> MLPPolicy:
    return MLPPolicy(CARTPOLE.observation_size, CARTPOLE.actions)


@pytest.mark.parametrize("seed", range(5))
def test_every_step_is_gymnasiums_in_double_precision(seed: int) -> None:
    theirs = gymnasium.make("CartPole-v1")
    obs, _ = theirs.reset(seed=seed)
    generator = np.random.default_rng(seed)
    with jax.enable_x64(True):
        step = jax.jit(cartpole.step)
        for time in range(500):
            # From their state every time: a pole that falls doubles any rounding several times a second.
            state = CartPoleState(jnp.asarray(theirs.unwrapped.state, jnp.float64), jnp.int32(time))
            # Mostly balancing, so that episodes last, with random actions among it, so that they see something.
            action = int(obs[2] + 0.5 * obs[3] > 0) if generator.random() < 0.9 else int(generator.integers(2))
            obs, reward, terminated, truncated, _ = theirs.step(action)
            ours = step(KEY, state, action)
            np.testing.assert_allclose(ours.state.physics, theirs.unwrapped.state, rtol=0, atol=1e-14)
            np.testing.assert_allclose(ours.obs, obs, atol=1e-6)
            assert (float(ours.reward), bool(ours.terminated), bool(ours.truncated)) == (reward, terminated, truncated)
            if terminated or truncated:
                break
    theirs.close()


def test_every_step_is_gymnasiums_in_single_precision_but_for_rounding() -> None:
    theirs = gymnasium.make("CartPole-v1")
    obs, _ = theirs.reset(seed=3)
    step = jax.jit(cartpole.step)
    generator = np.random.default_rng(0)
    for time in range(200):
        state = CartPoleState(jnp.asarray(theirs.unwrapped.state, jnp.float32), jnp.int32(time))
        action = int(generator.integers(2))
        obs, _, terminated, truncated, _ = theirs.step(action)
        np.testing.assert_allclose(step(KEY, state, action).obs, obs, atol=1e-6)
        if terminated or truncated:
            obs, _ = theirs.reset()
    theirs.close()


def test_it_ends_exactly_where_gymnasium_ends_it() -> None:
    def is_over(x: float, angle: float) -> bool:
        state = CartPoleState(jnp.array([x, 0.0, angle, 0.0]), jnp.zeros((), jnp.int32))
        return bool(cartpole.step(KEY, state, jnp.array(0)).terminated)

    theirs = gymnasium.make("CartPole-v1")
    angle_limit = theirs.unwrapped.theta_threshold_radians
    assert (is_over(2.39, 0.0), is_over(2.41, 0.0), is_over(-2.41, 0.0)) == (False, True, True)
    assert (is_over(0.0, angle_limit * 0.99), is_over(0.0, angle_limit * 1.01)) == (False, True)
    theirs.close()


def test_the_five_hundredth_step_is_a_cut_and_no_end() -> None:
    at_rest = jnp.zeros(4)
    before, last = (cartpole.step(KEY, CartPoleState(at_rest, jnp.int32(time)), jnp.array(1)) for time in (498, 499))
    assert (bool(before.truncated), bool(last.truncated), bool(last.terminated)) == (False, True, False)


def test_episodes_start_where_gymnasiums_do() -> None:
    obs = start_environments(CARTPOLE, KEY, 1000).obs
    assert float(jnp.abs(obs).max()) <= 0.05
    assert float(obs.min()) < -0.04
    assert float(obs.max()) > 0.04


def test_an_episode_that_is_over_is_followed_by_a_new_one(policy: MLPPolicy) -> None:
    weights = to_jax(policy.initial_weights())
    environments = start_environments(CARTPOLE, KEY, 8)
    _, record = scan_rollout(CARTPOLE, policy, weights, environments, KEY, steps=128, max_episode_steps=None)
    ended = np.asarray(record["terminated"])
    assert ended.any()
    for step, environment in np.argwhere(ended[:-1]):
        assert np.abs(record["obs"][step + 1, environment]).max() <= 0.05
        assert record["lengths"][step + 1, environment] == 1
        assert record["returns"][step + 1, environment] == 1.0
    running = ~ended[:-1]
    assert (np.asarray(record["lengths"])[1:][running] == np.asarray(record["lengths"])[:-1][running] + 1).all()


def test_what_follows_a_cut_is_valued_and_what_follows_an_end_is_not(policy: MLPPolicy) -> None:
    weights = to_jax(policy.initial_weights(1))
    environments = start_environments(CARTPOLE, KEY, 8)
    # Cut after 7 steps: most episodes are cut, some of the longer ones would have ended.
    _, record = scan_rollout(CARTPOLE, policy, weights, environments, KEY, steps=32, max_episode_steps=7)
    record = {name: np.asarray(array) for name, array in record.items()}
    cut = record["truncated"] & ~record["terminated"]
    assert cut.any()
    step = jax.jit(jax.vmap(cartpole.step, in_axes=(None, 0, 0)))
    for t in range(32):
        state = CartPoleState(record["obs"][t], record["lengths"][t] - 1)
        true_next = step(KEY, state, record["actions"][t]).obs
        value = policy.jax_forward(weights, true_next)[1]
        expected = np.where(record["terminated"][t], 0.0, value)
        np.testing.assert_allclose(record["next_values"][t], expected, atol=1e-5)
    after_cut = record["values"][1:][cut[:-1]]
    assert not np.allclose(record["next_values"][:-1][cut[:-1]], after_cut)


def test_an_end_that_is_also_a_cut_counts_as_an_end(policy: MLPPolicy) -> None:
    weights = to_jax(policy.initial_weights(1))
    both = jnp.ones((1, 1), bool)
    following = jnp.full((1, 1), 3.0)
    assert next_values_of(policy, weights, following, jnp.ones((1, 1, 4)), both, both).tolist() == [[0.0]]


def test_an_episode_is_played_once_to_its_end_in_an_evaluation(policy: MLPPolicy) -> None:
    weights = to_jax(policy.initial_weights())
    play_on = partial(
        play_scanned, environment=CARTPOLE, policy=policy, weights=weights, key=KEY, max_episode_steps=None, greedy=True
    )
    played = play_episodes(CARTPOLE, KEY, play_on, episodes=8, stretch=STRETCH, step_limit=1000)
    assert played.ended.all()
    assert ((played.returns >= 5) & (played.returns <= 500)).all()
    assert (played.lengths == played.returns).all()


def test_what_is_recorded_of_an_episode_is_what_was_played_however_long_it_is() -> None:
    policy = MLPPolicy(4, CARTPOLE.actions, hidden=(1,))
    # Pushes against the pole's fall, and so keeps it up for more steps than one scan has.
    balancing = {"actor.0.weight": [[0.1, 0.5, 2.0, 1.0]], "actor.1.weight": [[-9.0], [9.0]]}
    weights = policy.initial_weights() | {name: np.asarray(own, np.float32) for name, own in balancing.items()}
    play_on = partial(
        play_scanned,
        environment=CARTPOLE,
        policy=policy,
        weights=to_jax(weights),
        key=KEY,
        recorded=3,
        max_episode_steps=None,
        greedy=True,
    )
    played = play_episodes(CARTPOLE, KEY, play_on, episodes=6, stretch=STRETCH, step_limit=1000)
    assert played.lengths[:3].min() > 128
    assert played.record["obs"].shape[1:] == (3, 4)
    step = jax.jit(jax.vmap(cartpole.step, in_axes=(None, 0, 0)))
    for episode, length in enumerate(played.lengths[:3]):
        obs, actions = (played.record[name][:length, episode] for name in ("obs", "actions"))
        followed = step(KEY, CartPoleState(obs, np.arange(length)), actions).obs
        np.testing.assert_allclose(followed[:-1], obs[1:], atol=1e-5)
        assert played.record["rewards"][:length, episode].sum() == played.returns[episode]


def test_the_logprobs_of_a_rollout_are_those_of_its_actions(policy: MLPPolicy) -> None:
    weights = to_jax(policy.initial_weights(2))
    environments = start_environments(CARTPOLE, KEY, 8)
    _, record = scan_rollout(CARTPOLE, policy, weights, environments, KEY, steps=128, max_episode_steps=None)
    outputs, values = policy.jax_forward(weights, record["obs"])
    np.testing.assert_allclose(
        actor_jax.log_prob(policy.actions, weights, outputs, record["actions"]), record["logprobs"], atol=1e-6
    )
    np.testing.assert_allclose(values, record["values"], atol=1e-6)
