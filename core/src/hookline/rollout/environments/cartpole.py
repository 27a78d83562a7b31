"""CartPole-v1 as pure functions, with the equations, bounds and time limit of Gymnasium's."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from hookline.policies.protocol import Discrete
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition

__all__ = ["CARTPOLE", "CartPoleState", "reset", "step"]

GRAVITY: Final = 9.8
POLE_MASS: Final = 0.1
TOTAL_MASS: Final = 1.0 + POLE_MASS
HALF_LENGTH: Final = 0.5
FORCE: Final = 10.0
SECONDS_PER_STEP: Final = 0.02
POSITION_LIMIT: Final = 2.4
ANGLE_LIMIT: Final = 12 * 2 * math.pi / 360
TIME_LIMIT: Final = 500


class CartPoleState(NamedTuple):
    physics: jax.Array
    """Position, velocity, angle and angular velocity. It is also the observation."""
    time: jax.Array


def reset(key: jax.Array) -> tuple[CartPoleState, jax.Array]:
    physics = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return CartPoleState(physics, jnp.zeros((), jnp.int32)), physics


def step(_: jax.Array, state: CartPoleState, action: jax.Array) -> Transition:
    """One step of semi-explicit Euler, after Barto, Sutton and Anderson."""
    x, velocity, angle, spin = state.physics
    force = jnp.where(action == 1, FORCE, -FORCE)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    pole_moment = POLE_MASS * HALF_LENGTH
    pushed = (force + pole_moment * spin**2 * sine) / TOTAL_MASS
    angular_acceleration = (GRAVITY * sine - cosine * pushed) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / TOTAL_MASS)
    )
    acceleration = pushed - pole_moment * angular_acceleration * cosine / TOTAL_MASS
    physics = jnp.stack(
        [
            x + SECONDS_PER_STEP * velocity,
            velocity + SECONDS_PER_STEP * acceleration,
            angle + SECONDS_PER_STEP * spin,
            spin + SECONDS_PER_STEP * angular_acceleration,
        ]
    )
    time = state.time + 1
    terminated = (jnp.abs(physics[0]) > POSITION_LIMIT) | (jnp.abs(physics[2]) > ANGLE_LIMIT)
    return Transition(CartPoleState(physics, time), physics, jnp.ones(()), terminated, time >= TIME_LIMIT)


CARTPOLE: Final = JaxEnvironment("CartPole-v1", 4, Discrete(2), reset, step)
