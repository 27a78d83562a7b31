"""The trainer keeps the event contract, as any loop must."""

from __future__ import annotations

from collections.abc import Callable

from hookline import PluginManager
from hookline.testing import check_emitter
from hookline.training import Trainer


def test_a_supervised_run_keeps_the_event_contract(supervised: Callable[..., Trainer]) -> None:
    def run(plugin: object) -> None:
        with PluginManager() as manager:
            manager.register(plugin, "recorder")
            supervised(plugins=manager, validation_dataset=[{"tokens": [2, 3, 4]}] * 5, validate_every=1).train()

    check_emitter(run)


def test_a_run_of_rollouts_keeps_the_event_contract(playing: Callable[..., Trainer]) -> None:
    def run(plugin: object) -> None:
        with PluginManager() as manager:
            manager.register(plugin, "recorder")
            playing(plugins=manager).train()

    check_emitter(run)
