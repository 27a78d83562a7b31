"""`PooledPlayer`: a `LessonPlayer` in a worker of a pool, with plugins of its own.

It is built from plain data, and shares nothing with the trainer, also if it is in a thread of the trainer's process.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hookline.plugin_manager import PluginManager, open_plugins
from hookline.rng_keys import key_for
from hookline.rollout.config import RolloutWorkerConfig
from hookline.rollout.errors import RolloutError
from hookline.rollout.lesson_player import EvaluationTask, LessonPlayer, RolloutTask
from hookline.rollout.rng import key_of_evaluation, key_of_step
from hookline.rollout.sources.pool import Played
from hookline_hookspecs import HookContext, TrainerState

if TYPE_CHECKING:
    from hookline.plugin_manager.settings import Settings
    from hookline.rewards import IntegratedRewardConfig
    from hookline.rollout.sources.source import SourceRequest

__all__ = ["PlayerConfig", "PooledPlayer"]

NEEDED_EVENTS: Final = (
    "register_environments",
    "register_engines",
    "on_turn_end",
    "score_episodes",
    "verify_episodes",
)
"""Events by which a plugin changes rollouts. An implementation of `on_turn_end` may end a conversation."""


@dataclass(frozen=True)
class PlayerConfig:
    """All that a player is built from. cloudpickle can pickle it. A call builds the player of a worker."""

    config: RolloutWorkerConfig
    rewards: IntegratedRewardConfig | None = None
    settings: Settings | None = None
    """The settings of the trainer's plugins, which are those of the worker's too. None for no plugins."""
    needed: tuple[str, ...] = ()
    """Plugins that change rollouts in the trainer, and must be active in the worker."""
    module: Any = None
    """A copy of the torch module that plays. None for a policy that the config describes."""
    device: str = "auto"
    """The device of the module."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """`Played.state` of another worker."""

    @classmethod
    def of(cls, request: SourceRequest) -> PlayerConfig:
        """What `local` would play with."""
        worker, plugins = request.worker, request.worker.plugins
        loaded = [record.name for record in plugins.records if record.state == "active"]
        needed = []
        for name, _ in plugins.list_name_plugin():
            events = [own.event.name for own in plugins.implementations_of(name) if own.event.name in NEEDED_EVENTS]
            if events and name not in loaded:
                raise RolloutError(
                    f"plugin {name!r} implements {events[0]}, but it was registered by hand, and rollout workers find "
                    "plugins by entry point and settings: install it, name it in `load`, or use "
                    'rollout.source = "local"'
                )
            needed += [name] if events else []
        config, player = worker.config, worker.player
        if config.policy is None and player.plays_text:
            config = replace(
                config, policy=player.policy if player.module is None else None, tokenizer=player.tokenizer
            )
        module = copy.deepcopy(player.module)
        return cls(config, request.rewards, plugins.settings, tuple(needed), module, player.device)

    def __call__(self, index: int) -> PooledPlayer:
        return PooledPlayer(self, index)


class PooledPlayer:
    """Plays rollouts in a worker. Plugins are found by entry point there. Those for rank 0 alone are not called."""

    _player: LessonPlayer

    def __init__(self, config: PlayerConfig, index: int) -> None:
        self._config = config
        self._index = index
        self._plugins = PluginManager(rank=index + 1)
        self._numbers: dict[str, Any] = {}
        self._number = 0
        """The number of the latest task."""

    def start(self) -> str:
        config = self._config
        if config.settings is not None:
            self._plugins = open_plugins(rank=self._index + 1, settings=config.settings)
        missing = [name for name in config.needed if not self._plugins.has_plugin(name)]
        if missing:
            raise RolloutError(
                f"plugin {missing[0]!r} is active in the trainer, but not in rollout worker {self._index}"
            )
        self._player = player = LessonPlayer(config.config, self._plugins, self._context)
        if config.module is not None:
            player.use_module(config.module, config.device)
        if config.rewards is not None:
            player.use_rewards(config.rewards, config.state)
        self._plugins.emit.on_worker_start(context=self._context("on_worker_start"))
        return ""

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._player.load_weights(weights, version)
        self._plugins.emit.on_weights_updated(context=self._context("on_weights_updated"), version=version)

    def play(self, task: RolloutTask | EvaluationTask) -> Played:
        if isinstance(task, EvaluationTask):
            return Played(self._player.evaluate(task.request, key_of_evaluation(task.request.seed), task.weights))
        self._number = task.number
        rollout = self._player.play(task)
        rewards = self._player.rewards
        return Played(rollout, self._new_numbers(), {} if rewards is None else rewards.thresholds())

    def _new_numbers(self) -> dict[str, float]:
        """The numbers of plugins that have changed since the last task, and how often plugins have failed."""
        collected = self._plugins.emit.collect_metrics(state=TrainerState(rank=self._plugins.rank))
        numbers = {name: value for _, own in collected.items() for name, value in own.items()}
        failures = sum(fault.count for fault in self._plugins.faults.faults.values())
        if failures:
            numbers["plugin_failures"] = float(failures)
        changed = {name: value for name, value in numbers.items() if self._numbers.get(name) != value}
        self._numbers = numbers
        return changed

    def _context(self, event: str) -> HookContext:
        key = key_for(key_of_step(self._player.key, self._number), event)
        metadata = {"worker_index": self._index, "weights_version": self._player.version}
        return HookContext(self, self._number, key, metadata=metadata)

    def kill(self) -> None:
        """A running rollout cannot be ended."""

    def close(self) -> None:
        try:
            if hasattr(self, "_player"):
                self._plugins.emit.on_worker_stop(context=self._context("on_worker_stop"))
                self._player.close()
        finally:
            self._plugins.close()
