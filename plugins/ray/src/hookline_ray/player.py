"""`RayPlayer`: has a player in a Ray actor play."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import ray
from ray.exceptions import RayError, RayTaskError

from hookline.rollout.errors import RolloutError
from hookline.rollout.sources import Played, WorkerLostError
from hookline_ray.actor import Place

__all__ = ["RayPlayer"]

CLOSE_SECONDS: Final = 5.0
"""How long an actor may take to close its player before it is killed."""

POLL_SECONDS: Final = 1.0
"""How often a call looks whether its actor was killed. Ray may be slow to notice, if the node does not answer."""


class RayPlayer:
    """Starts an actor, and passes all calls on to its player.

    :param actor_class: the remote class, with its resources.
    :param code: the function that makes the player, given the index, in the object store.
    """

    def __init__(self, index: int, actor_class: Any, code: Any) -> None:
        self._index = index
        self._code = code
        self._is_killed = threading.Event()
        self._place: Place | None = None
        self._actor = actor_class.remote(sys.path)

    @property
    def pid(self) -> int | None:
        """The process of the actor, if it is on this machine."""
        if self._place is None or self._place.node != ray.util.get_node_ip_address():
            return None
        return self._place.pid

    def start(self) -> str:
        self._place = place = Place(*self._call("start", self._code, self._index))
        return f"process {place.pid} on node {place.node}"

    def load_weights(self, weights: Any, version: int) -> None:
        """Have the actor fetch weights.

        :param weights: a reference to them in the object store.
        """
        self._call("load_weights", weights, version)

    def play(self, task: Any) -> Played:
        played: Played = ray.cloudpickle.loads(self._call("play", task))
        return played

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            answer = getattr(self._actor, method).remote(*arguments)
            while not ray.wait([answer], timeout=POLL_SECONDS)[0]:
                if self._is_killed.is_set():
                    raise WorkerLostError("killed")
            outcome = ray.get(answer)
        except RayTaskError as error:  # arguments or the result could not be sent
            raise RolloutError(f"rollout worker {self._index}: {error.cause or error}") from error
        except RayError as error:
            raise WorkerLostError(_cause(error)) from error
        return outcome.unwrap(self._index)

    def kill(self) -> None:
        self._is_killed.set()
        if ray.is_initialized():  # otherwise the actor has ended with the connection
            ray.kill(self._actor)

    def close(self) -> None:
        """Let the actor close its player, unless it was killed, and end it."""
        if not ray.is_initialized():
            return
        if not self._is_killed.is_set():
            ray.wait([self._actor.close.remote()], timeout=CLOSE_SECONDS)
            self.kill()


def _cause(error: RayError) -> str:
    """What Ray says of a death, without the ids before it and the advice after it."""
    text = " ".join(str(error).split())
    _, found, cause = text.partition("The actor is dead because ")
    return (cause if found else text).partition(" Some common causes")[0]
