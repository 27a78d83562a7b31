"""Copies a run's state into the bytes of a checkpoint's files, on the training thread while nothing changes."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookline_checkpoint.arrays import Arrays, ReusedBuffer, in_shards, size_of
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.layout import OPTIMIZER, PLUGINS, POLICY, POLICY_INDEX, STATE, name_of_shard
from hookline_checkpoint.tree import holds_arrays, split_tree
from hookline_hookspecs.redaction import redact, redact_text

__all__ = ["Snapshot", "SnapshotBuffers"]

logger = logging.getLogger("hookline.checkpoint")

LARGEST_SHARD: Final = 5 * 10**9
"""Largest size in bytes of the arrays in one file of the policy."""


@dataclass(frozen=True)
class Snapshot:
    """The files of a checkpoint without the manifest. Valid until the next snapshot with the same buffers."""

    epoch: int
    step: int
    metrics: Mapping[str, float]
    files: Mapping[str, Sequence[bytes | memoryview]]
    """The bytes of each file by name, in the order of writing."""


class SnapshotBuffers:
    """The memory that all snapshots reuse."""

    def __init__(self) -> None:
        self._of_file: defaultdict[str, ReusedBuffer] = defaultdict(ReusedBuffer)
        self._warned: set[str] = set()
        """Plugins that were warned about a secret in their state."""

    def reserve(self, policy: Any, optimizer: Any) -> Callable[[], None]:
        """Measure the memory that these need. Returns a function that allocates it, on any thread."""
        arrays = {**_policy_shards(split_tree(policy, "it")[0]), OPTIMIZER: split_tree(optimizer, "it")[0]}
        sizes = {name: size_of(own) for name, own in arrays.items()}

        def reserve() -> None:
            for name, size in sizes.items():
                self._of_file[name].reserve(size)

        return reserve

    def take(self, contents: Contents) -> Snapshot:
        """Copy everything that changes as training goes on."""
        policy, policy_description = split_tree(contents.policy, "the policy's state_dict()")
        optimizer, optimizer_description = split_tree(contents.optimizer, "the optimizer's state_dict()")
        with_arrays = {name: saved for name, saved in contents.plugins.items() if holds_arrays(saved)}
        of_plugins, descriptions = _split_plugins(with_arrays)
        plugins = {**contents.plugins, **descriptions}
        state = {
            "run_id": contents.run_id,
            "counters": {"epoch": contents.epoch, "step": contents.step, "agent_step": contents.agent_step},
            "metrics": contents.metrics,
            "config": contents.config,
            "policy": policy_description,
            "optimizer": optimizer_description,
            "plugins": plugins,
            "plugins_with_arrays": sorted(with_arrays),
        }
        shards = _policy_shards(policy)
        arrays = {**shards, OPTIMIZER: optimizer, **({PLUGINS: of_plugins} if of_plugins else {})}
        files: dict[str, Sequence[bytes | memoryview]] = {
            STATE: [self._as_json(state, plugins)],
            **{name: self._of_file[name].fill(own) for name, own in arrays.items()},
        }
        if POLICY not in shards:
            files[POLICY_INDEX] = [_index(shards)]
        return Snapshot(contents.epoch, contents.step, dict(contents.metrics), files)

    def _as_json(self, state: Mapping[str, Any], plugins: Mapping[str, Any]) -> bytes:
        try:
            text = json.dumps(state, allow_nan=False)
            if redact_text(text) != text:  # checked as a whole first, since secrets are rare
                safe = {"config": redact(state["config"]), "plugins": self._without_secrets(plugins)}
                text = json.dumps({**state, **safe}, allow_nan=False)
            return text.encode()
        except (TypeError, ValueError) as error:
            # Find the plugin only now, since checking each one at every save would double the time.
            for plugin, saved in plugins.items():
                _check_json(plugin, saved)
            raise CheckpointError(f"the run's state cannot be written as JSON: {error}") from error

    def _without_secrets(self, plugins: Mapping[str, Any]) -> dict[str, Any]:
        """Redacts known secret values, not names: a plugin may save its rng as `key`, and must get it back."""
        safe = {plugin: redact(saved, by_names=False) for plugin, saved in plugins.items()}
        for plugin, saved in plugins.items():
            if plugin not in self._warned and json.dumps(safe[plugin]) != json.dumps(saved):
                self._warned.add(plugin)
                logger.warning("plugin %r has a secret in its saved state: it is left out of the checkpoint", plugin)
        return safe


def _policy_shards(arrays: Arrays) -> dict[str, Arrays]:
    """The policy's arrays by the name of their file."""
    shards = in_shards(arrays, LARGEST_SHARD)
    if len(shards) == 1:
        return {POLICY: arrays}
    return {name_of_shard(number, len(shards)): own for number, own in enumerate(shards, start=1)}


def _index(shards: Mapping[str, Arrays]) -> bytes:
    """Which array is in which file, in the format of Hugging Face."""
    files = {name: file for file, arrays in shards.items() for name in arrays}
    total = sum(map(size_of, shards.values()))
    return json.dumps({"metadata": {"total_size": total}, "weight_map": files}, indent=2).encode()


def _split_plugins(plugins: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of all these plugins by name, and the description of each plugin's state."""
    arrays, description = split_tree(dict(plugins), "save_plugin_state")
    return arrays, dict(description["dict"])


def _check_json(plugin: str, saved: object) -> None:
    try:
        json.dumps(saved, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"what plugin {plugin!r} returned from save_plugin_state cannot be written as JSON: {error}"
        ) from error
