"""What became of an attempt to deliver, and how long to wait before the next."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

__all__ = ["Answer", "Backoff", "read_retry_after"]

LONGEST_RETRY_AFTER: Final = 3600.0
"""A server that asks for more has most likely made a mistake."""

_CHANCE = random.Random()  # of its own: a run draws the same random numbers with and without an endpoint that fails


class Answer(NamedTuple):
    """What became of an attempt."""

    outcome: Literal["delivered", "rejected", "failed"]
    problem: str = ""
    retry_after: float | None = None
    """Seconds for which the server asks to be left alone."""


@dataclass(frozen=True)
class Backoff:
    """Full jitter: anything from 0 to a bound that doubles with each failure, so that many runs do not come at once."""

    first: float = 0.5
    longest: float = 60.0

    def seconds(self, failures: int) -> float:
        """The wait after so many failures in a row, 1 for the first."""
        bound = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return _CHANCE.uniform(0.0, bound)


def read_retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, in either of its forms; None for anything else."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(float(value), LONGEST_RETRY_AFTER)
    import email.utils  # here, for the sake of whoever only lists plugins

    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), LONGEST_RETRY_AFTER)
