"""`WorkerPool`: workers that play tasks with the latest weights, and the events by which it tells what they do.

A pool moves tasks, weights and results. It decides nothing: a `TaskDriver` submits tasks, and replaces workers that are
lost. `ThreadPool` is a pool of any `Player`, one in each thread. A player may pass its calls on to another process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hookline.rollout.errors import RolloutError
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.redaction import redact_text

__all__ = [
    "Began",
    "Failed",
    "Finished",
    "Lost",
    "Outcome",
    "Played",
    "Player",
    "PoolEvent",
    "Ready",
    "WorkerLostError",
    "WorkerPool",
]


class WorkerLostError(RolloutError):
    """A worker is gone. The message says how."""


@dataclass(frozen=True)
class Played:
    """What became of a task."""

    result: Any
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the worker's own plugins that have changed since its last task."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What a new worker should start with, as JSON values."""


class Player(Protocol):
    """Plays tasks, one at a time. All but `kill` are called from one thread. Making one is quick."""

    def start(self) -> str:
        """Get ready, which may take long. Returns what it plays in, for messages."""

    def load_weights(self, weights: Any, version: int) -> None:
        """Play with these weights from now on."""

    def play(self, task: Any) -> Played:
        """Play a task. An error of the task is raised. `WorkerLostError` says that the player is of no more use."""

    def kill(self) -> None:
        """Have a running call raise `WorkerLostError` soon. Called from another thread. Does nothing if it cannot."""

    def close(self) -> None:
        """Release everything, within seconds. Called last, also after any error."""


class Outcome(NamedTuple):
    """What became of a call in another process: a result, or an error as text, since the trainer may lack its class."""

    result: Any = None
    error: str | None = None
    traceback: str = ""

    @classmethod
    def of(cls, call: Callable[[], Any]) -> Outcome:
        """Call this in the worker."""
        try:
            return cls(call())
        except Exception as error:
            return cls(error=describe_error(error), traceback=redact_text(traceback.format_exc()))

    def unwrap(self, worker: int) -> Any:
        """The result, in the trainer's process. The error is raised there."""
        if self.error is not None:
            failure = RolloutError(f"rollout worker {worker}: {self.error}")
            failure.add_note(f"in the worker process:\n{self.traceback}")
            raise failure
        return self.result


@dataclass(frozen=True)
class Ready:
    """A worker has started."""

    worker: int
    at: float
    """The time of the event, by the driver's clock."""
    where: str
    """What it plays in, for messages."""


@dataclass(frozen=True)
class Began:
    """A worker has begun a task."""

    worker: int
    at: float
    task: Any


@dataclass(frozen=True)
class Finished:
    """A task is played."""

    worker: int
    at: float
    task: Any
    played: Played


@dataclass(frozen=True)
class Failed:
    """A task raised an error, and its worker goes on. Without a task, the start of the worker failed."""

    worker: int
    at: float
    task: Any
    error: BaseException


@dataclass(frozen=True)
class Lost:
    """A worker is gone, and with it the task that it had begun."""

    worker: int
    at: float
    how: str


PoolEvent = Ready | Began | Finished | Failed | Lost


class WorkerPool(Protocol):
    """Workers by index from 0. Only `wait` blocks. All methods are called from one thread."""

    workers: int

    def start(self) -> None:
        """Start all workers. Each is `Ready` later."""

    def submit(self, task: Any, *, first: bool = False) -> None:
        """Queue a task for the next worker that is idle.

        :param first: before all others in the queue.
        """

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Have every task that begins from now on played with these weights, also by workers that start later.

        :param weights: NumPy arrays that do not change.
        """

    def wait(self, seconds: float | None) -> PoolEvent | None:
        """The next event, in order. None if there is none within these seconds."""

    def restart(self, worker: int) -> None:
        """End a worker by force, if it is there, and start another in its place. Its earlier events are dropped."""

    def clear(self) -> None:
        """Forget the tasks that no worker has begun."""

    def pids(self) -> list[int]:
        """The processes of the workers on this machine."""

    def close(self) -> None:
        """End all workers, in bounded time. Those that are playing are ended by force."""
