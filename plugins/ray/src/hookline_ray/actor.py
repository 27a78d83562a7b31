"""`RolloutActor`: a player in a Ray actor, for calls of a `RayPlayer`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray

from hookline.rollout.sources import Outcome, Player
from hookline_hookspecs.logs import hide_secrets_in_tracebacks

__all__ = ["Place", "RolloutActor"]


class Place(NamedTuple):
    """Where an actor is."""

    node: str
    """The address of its node."""
    pid: int


class RolloutActor:
    """Makes a player and passes calls on to it.

    :param path: the trainer's `sys.path`. What is there may be here too.
    """

    _player: Player

    def __init__(self, path: Sequence[str]) -> None:
        hide_secrets_in_tracebacks()
        sys.path += [folder for folder in path if folder not in sys.path]
        os.dup2(2, 1)  # keeps the environment's output out of the trainer's stdout

    def start(self, make_player: Callable[[int], Player], index: int) -> Outcome:
        def start() -> Place:
            self._player = make_player(index)
            self._player.start()
            return Place(ray.util.get_node_ip_address(), os.getpid())

        return Outcome.of(start)

    def load_weights(self, weights: Any, version: int) -> Outcome:
        return Outcome.of(lambda: self._player.load_weights(weights, version))

    def play(self, task: Any) -> Outcome:
        """The outcome holds a pickle. Of arrays that Ray itself unpickles, none can be written to."""
        return Outcome.of(lambda: ray.cloudpickle.dumps(self._player.play(task)))

    def close(self) -> Outcome:
        return Outcome.of(lambda: self._player.close())
