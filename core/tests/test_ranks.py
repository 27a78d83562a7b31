"""Rank scope: what an event says, and what an implementation may narrow."""

import pytest

from hookline import PluginManager
from hookline.plugin_manager import PluginError
from hookline_hookspecs import HookContext, Rollout, TrainerState, hookimpl


class Everywhere:
    def __init__(self) -> None:
        self.calls: list[str] = []

    @hookimpl
    def on_epoch_end(self) -> None:
        self.calls.append("every rank")

    @hookimpl(scope="driver")
    def on_epoch_start(self) -> None:
        self.calls.append("narrowed to the driver")

    @hookimpl
    def log_metrics(self) -> None:
        self.calls.append("the driver's event")

    @hookimpl
    def on_rollout_end(self) -> None:
        self.calls.append("worker")


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, ["narrowed to the driver", "every rank", "the driver's event", "worker"]), (1, ["every rank", "worker"])],
)
def test_implementations_for_the_driver_run_on_rank_0_only(rank: int, expected: list[str]) -> None:
    plugin = Everywhere()
    with PluginManager(rank=rank) as manager:
        manager.register(plugin)
        manager.emit.on_epoch_start(state=TrainerState())
        manager.emit.on_epoch_end(state=TrainerState())
        manager.emit.log_metrics(report_data={}, step=0)
        manager.emit.on_rollout_end(context=HookContext(), rollout=Rollout())
    assert plugin.calls == expected


@pytest.mark.parametrize("scope", ["every_rank", "worker"])
def test_an_implementation_cannot_widen_the_scope_of_its_event(hookline_manager: PluginManager, scope: str) -> None:
    @hookimpl(scope=scope)
    def log_metrics(self) -> None: ...

    plugin = type("Wide", (), {"log_metrics": log_metrics})()
    with pytest.raises(
        PluginError, match=f"plugin 'Wide': log_metrics has scope '{scope}', but the event's is 'driver'"
    ):
        hookline_manager.register(plugin)


def test_a_misspelt_scope_is_an_error_with_the_nearest(hookline_manager: PluginManager) -> None:
    class Misspelt:
        @hookimpl(scope="diver")
        def on_epoch_end(self) -> None: ...

    with pytest.raises(PluginError, match=r"scope 'diver' \(did you mean 'driver'\?\)"):
        hookline_manager.register(Misspelt())
