"""Checks of the values that an environment returns.

Each function takes `where`, which returns the lesson or environment, the episode and the step as text. It is called
only for an error, since building the text costs more than most checks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from hookline.rollout.errors import LessonError
from hookline.session import Terminated
from hookline_hookspecs.errors import describe_error, shortened

__all__ = ["STOPS", "attributed", "checked_cell", "checked_observation", "checked_reward", "raised"]

LARGEST: Final = float(np.finfo(np.float32).max)
"""Rewards and observations are stored as float32, where anything larger is infinite."""

STOPS: Final = (KeyboardInterrupt, Terminated)
"""Exceptions that stop this process. They are not failures of the environment that was running."""

Where = Callable[[], str]


def raised(where: str, error: BaseException) -> LessonError:
    """The error for an exception of an environment, checker or policy, including `SystemExit`."""
    return LessonError(f"{where}: raised {describe_error(error)}")


@contextmanager
def attributed(where: str) -> Iterator[None]:
    """Turn any exception into an error that says where it was raised."""
    try:
        yield
    except (LessonError, *STOPS):
        raise
    except BaseException as error:
        raise raised(where, error) from error


def checked_reward(reward: Any, where: Where) -> float:
    """The reward as a float. Strings and arrays of one number are rejected, although `float` accepts them."""
    try:
        if isinstance(reward, (str, bytes)) or getattr(reward, "ndim", 0) != 0:
            raise TypeError
        value = float(reward)
        if -LARGEST <= value <= LARGEST:
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise LessonError(f"{where()}: the reward is {shortened(reward)}; a reward must be a finite number")


def checked_observation(obs: Any, shape: tuple[int, ...] | None, where: Where) -> np.ndarray:
    """The observation as an array of finite numbers.

    :param shape: the required shape. None for any.
    """
    wanted = "finite numbers" + ("" if shape is None else f" of shape {shape}")
    try:
        array = np.asarray(obs)
    except Exception:  # ragged lists, and any error of the environment's own array type
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise LessonError(f"{where()}: the observation is {shortened(obs)}; it must be {wanted}")
    if shape is not None and array.shape != shape:
        raise LessonError(f"{where()}: the observation has shape {array.shape}; it must be {wanted}")
    if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST).all():
        raise LessonError(f"{where()}: the observation is {shortened(array.tolist())}; it must be {wanted}")
    return array


def checked_cell(obs: Any, start: int, count: int, where: Where) -> int:
    """A discrete observation as an index from 0."""
    try:
        cell = operator.index(obs) - start
    except TypeError:
        cell = -1
    if not 0 <= cell < count:
        raise LessonError(
            f"{where()}: the observation is {shortened(obs)}; it must be an integer from {start} to {start + count - 1}"
        )
    return cell
