"""What an environment gives, checked where it comes in.

Each function takes `where`, which names the lesson or environment, the episode and the step. It is called only for an
error, since building the text costs more than most checks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from hookline.rollout.errors import LessonError
from hookline.session import Terminated
from hookline_hookspecs.errors import describe_error

__all__ = ["STOPS", "attributed", "checked_cell", "checked_observation", "checked_reward", "raised", "shortened"]

LARGEST: Final = float(np.finfo(np.float32).max)
"""Rewards and observations are kept as float32, in which anything larger is infinite."""

STOPS: Final = (KeyboardInterrupt, Terminated)
"""Raised to stop this process, and so not a failure of the environment in which they happen to arrive."""

Where = Callable[[], str]


def raised(where: str, error: BaseException) -> LessonError:
    """The error for what an environment, checker or policy raised, `sys.exit()` included."""
    return LessonError(f"{where}: raised {describe_error(error)}")


@contextmanager
def attributed(where: str) -> Iterator[None]:
    """Turn whatever is raised into an error that says where."""
    try:
        yield
    except (LessonError, *STOPS):
        raise
    except BaseException as error:
        raise raised(where, error) from error


def checked_reward(reward: Any, where: Where) -> float:
    """The reward as a float. Texts are refused although `float` reads them, and so are arrays of one number."""
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

    :param shape: the shape that it must have; None for any.
    """
    wanted = "finite numbers" + ("" if shape is None else f" of shape {shape}")
    try:
        array = np.asarray(obs)
    except Exception:  # ragged lists, and whatever the environment's own array type raises
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise LessonError(f"{where()}: the observation is {shortened(obs)}; it must be {wanted}")
    if shape is not None and array.shape != shape:
        raise LessonError(f"{where()}: the observation has shape {array.shape}; it must be {wanted}")
    if array.dtype.kind == "f" and not (np.abs(array) <= LARGEST).all():
        raise LessonError(f"{where()}: the observation is {shortened(array.tolist())}; it must be {wanted}")
    return array


def checked_cell(obs: Any, start: int, count: int, where: Where) -> int:
    """A discrete observation, counted from 0."""
    try:
        cell = operator.index(obs) - start
    except TypeError:
        cell = -1
    if not 0 <= cell < count:
        raise LessonError(
            f"{where()}: the observation is {shortened(obs)}; it must be a whole number from {start} to "
            f"{start + count - 1}"
        )
    return cell


def shortened(value: Any, length: int = 100) -> str:
    """A value for a message, in one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= length else text[:length] + "..."
