"""A replay buffer as arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from hookline.errors import HooklineError

__all__ = ["check_can_save", "restore_replay_buffer", "take_replay_buffer"]

KINDS: Final = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)
"""Buffers whose state is their arrays, a position and whether they are full."""
ARRAYS: Final = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def check_can_save(model: Any) -> None:
    """Raise when a model has no replay buffer that can be saved."""
    buffer = getattr(model, "replay_buffer", None)
    if buffer is None:
        raise HooklineError(f"{type(model).__name__} has no replay buffer: leave out save_replay_buffer")
    if type(buffer) not in KINDS:
        raise HooklineError(
            f"a {type(buffer).__name__} may have more state than is known here: leave out save_replay_buffer, "
            f"or use one of {', '.join(kind.__name__ for kind in KINDS)}"
        )


def take_replay_buffer(buffer: ReplayBuffer) -> dict[str, Any]:
    """The part of a buffer that is filled, not copied."""
    filled = buffer.buffer_size if buffer.full else buffer.pos
    arrays = {name: getattr(buffer, name) for name in ARRAYS if hasattr(buffer, name)}
    return {
        "size": buffer.buffer_size,
        "position": buffer.pos,
        "is_full": buffer.full,
        "arrays": {name: _first(own, filled) for name, own in arrays.items()},
    }


def _first(array: Any, count: int) -> Any:
    if isinstance(array, dict):
        return {name: own[:count] for name, own in array.items()}
    return array[:count]


def restore_replay_buffer(buffer: ReplayBuffer, taken: Mapping[str, Any]) -> None:
    """Fill a buffer as it was. Episodes that were going on have no next step, and end there without being terminal."""
    if buffer.buffer_size != taken["size"] or buffer.n_envs != taken["arrays"]["rewards"].shape[1]:
        raise HooklineError(
            f"the checkpoint's replay buffer has {taken['size']} steps of {taken['arrays']['rewards'].shape[1]} "
            f"environment(s), and this model's has {buffer.buffer_size} of {buffer.n_envs}: make the model as before"
        )
    for name, saved in taken["arrays"].items():
        target = getattr(buffer, name)
        for own, array in zip(_leaves(target), _leaves(saved), strict=True):
            own[: len(array)] = array
    buffer.pos, buffer.full = taken["position"], taken["is_full"]
    if buffer.full or buffer.pos:
        last = buffer.pos - 1
        cut_off = buffer.dones[last] == 0
        buffer.dones[last, cut_off] = 1
        # Where next observations are those of the next step, stable-baselines3 takes such an end as terminal as well.
        if not buffer.optimize_memory_usage:
            buffer.timeouts[last, cut_off] = 1


def _leaves(arrays: Any) -> list[np.ndarray[Any, Any]]:
    return [arrays[name] for name in sorted(arrays)] if isinstance(arrays, dict) else [arrays]
