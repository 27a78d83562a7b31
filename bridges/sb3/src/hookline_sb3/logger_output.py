"""The numbers of stable-baselines3's logger, for a session."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from stable_baselines3.common.logger import KVWriter

from hookline.session import Session

__all__ = ["SessionOutput", "as_numbers"]

TRAINING = "train/"


class SessionOutput(KVWriter):
    """One more output of the logger: what is dumped is reported at the gradient step that the run is at.

    Numbers of an update are left out. They are reported when their epoch ends: the logger is dumped less often, and
    keeps only the newest until then.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        del key_excluded, step
        numbers = as_numbers(key_values, of_training=False)
        if numbers:
            self._session.log(numbers)

    def close(self) -> None:
        """The session ends with the run, not with the logger."""


def as_numbers(values: Mapping[str, Any], *, of_training: bool) -> dict[str, float]:
    """The numbers among what was recorded, which may be texts, figures and videos as well."""
    return {
        name: float(value)
        for name, value in values.items()
        if name.startswith(TRAINING) == of_training and isinstance(value, Real)
    }
