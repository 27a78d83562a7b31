"""after, before and requires."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import PluginManager
from hookline.plugin_manager import OrderError, PluginError, manager
from hookline.plugin_manager.ordering import Constraints, sort_by_constraints
from hookline_hookspecs import TrainerState, hookimpl


def make_plugin(log: list[str], name: str, **attributes: object) -> object:
    class Plugin:
        @hookimpl
        def on_epoch_end(self) -> None:
            log.append(name)

    plugin = Plugin()
    vars(plugin).update(attributes)
    return plugin


def call_order(manager: PluginManager, log: list[str]) -> list[str]:
    log.clear()
    manager.emit.on_epoch_end(state=TrainerState())
    return list(log)


def test_after_and_before_hold_whatever_the_order_of_registration(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    hookline_manager.register(make_plugin(log, "metrics", after=("checkpoint",)), "metrics")
    hookline_manager.register(make_plugin(log, "status", before=("checkpoint",)), "status")
    hookline_manager.register(make_plugin(log, "checkpoint"), "checkpoint")
    assert call_order(hookline_manager, log) == ["status", "checkpoint", "metrics"]


def test_after_a_plugin_that_is_not_there_means_nothing(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    hookline_manager.register(make_plugin(log, "metrics", after=("absent",)), "metrics")
    assert call_order(hookline_manager, log) == ["metrics"]


def test_after_wins_over_tryfirst(hookline_manager: PluginManager) -> None:
    log: list[str] = []

    class Eager:
        after = ("calm",)

        @hookimpl(tryfirst=True)
        def on_epoch_end(self) -> None:
            log.append("eager")

    hookline_manager.register(Eager(), "eager")
    hookline_manager.register(make_plugin(log, "calm"), "calm")
    assert call_order(hookline_manager, log) == ["calm", "eager"]


def test_before_puts_a_wrapper_outside_of_another(hookline_manager: PluginManager) -> None:
    log: list[str] = []

    def wrapper(name: str, **attributes: object) -> object:
        class Wrapper:
            @hookimpl(wrapper=True)
            def on_epoch_end(self):
                log.append(f"{name} in")
                yield
                log.append(f"{name} out")

        plugin = Wrapper()
        vars(plugin).update(attributes)
        return plugin

    hookline_manager.register(wrapper("outer", before=("inner",)), "outer")
    hookline_manager.register(wrapper("inner"), "inner")
    assert call_order(hookline_manager, log) == ["outer in", "inner in", "inner out", "outer out"]


def test_a_cycle_is_an_error_that_names_both_and_changes_nothing(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    hookline_manager.register(make_plugin(log, "metrics", after=("checkpoint",)), "metrics")
    with pytest.raises(OrderError) as caught:
        hookline_manager.register(make_plugin(log, "checkpoint", after=("metrics",)), "checkpoint")
    assert str(caught.value) == (
        "the plugins' order has a cycle: 'metrics' is after 'checkpoint', 'checkpoint' is after 'metrics'"
    )
    assert not hookline_manager.has_plugin("checkpoint")
    assert call_order(hookline_manager, log) == ["metrics"]


def test_a_missing_requirement_is_an_error_that_names_both(hookline_manager: PluginManager) -> None:
    hookline_manager.register(make_plugin([], "checkpoint"), "checkpoint")
    with pytest.raises(OrderError) as caught:
        hookline_manager.register(make_plugin([], "best", requires=("chekpoint",)), "best")
    assert str(caught.value) == (
        "plugin 'best' requires 'chekpoint', which is not registered (did you mean 'checkpoint'?)"
    )


def test_a_plugin_that_another_requires_cannot_be_unregistered(hookline_manager: PluginManager) -> None:
    hookline_manager.register(make_plugin([], "checkpoint"), "checkpoint")
    hookline_manager.register(make_plugin([], "best", requires=("checkpoint",)), "best")
    with pytest.raises(OrderError, match="'checkpoint' cannot be unregistered: 'best' requires it"):
        hookline_manager.unregister(name="checkpoint")
    hookline_manager.unregister(name="best")
    hookline_manager.unregister(name="checkpoint")


def test_a_name_in_place_of_a_tuple_of_names_is_an_error(hookline_manager: PluginManager) -> None:
    with pytest.raises(PluginError, match=r"plugin 'x': after must be a tuple of plugin names, such as \('metrics',\)"):
        hookline_manager.register(make_plugin([], "x", after="metrics"), "x")


def test_the_same_plugins_come_in_the_same_order_every_time() -> None:
    orders = set()
    for _ in range(5):
        manager, log = PluginManager(), []
        for name in ("a", "b", "c", "d"):
            manager.register(make_plugin(log, name, after=("c",) if name == "a" else ()), name)
        orders.add(tuple(call_order(manager, log)))
    assert orders == {("d", "c", "b", "a")}


def sorted_plainly(names: list[str], constraints: dict[str, Constraints]) -> list[str]:
    """What the order is defined to be: the first name whose predecessors are all placed goes next."""
    ordered: list[str] = []
    while len(ordered) < len(names):
        for name in names:
            before = {n for n in names if n in constraints[name].after or name in constraints[n].before}
            if name not in ordered and before <= set(ordered):
                ordered.append(name)
                break
        else:
            raise OrderError(None, "a cycle")
    return ordered


NAMES = [f"p{number}" for number in range(8)]
some_names = st.lists(st.sampled_from(NAMES), max_size=2).map(tuple)


@given(names=st.permutations(NAMES), wishes=st.lists(st.builds(Constraints, some_names, some_names), min_size=8))
def test_plugins_are_moved_as_little_as_the_constraints_allow(names: list[str], wishes: list[Constraints]) -> None:
    constraints = dict(zip(NAMES, wishes, strict=False))
    try:
        expected = sorted_plainly(names, constraints)
    except OrderError:
        with pytest.raises(OrderError, match="the plugins' order has a cycle: ") as caught:
            sort_by_constraints(names, constraints)
        assert set(caught.value.among) <= set(names)
    else:
        assert sort_by_constraints(names, constraints) == expected


def test_plugins_that_declare_no_order_are_registered_without_sorting(
    hookline_manager: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorts: list[int] = []
    monkeypatch.setattr(
        manager, "sort_by_constraints", lambda names, wishes: sorts.append(1) or sort_by_constraints(names, wishes)
    )
    log: list[str] = []
    for number in range(20):
        hookline_manager.register(make_plugin(log, str(number)), str(number))
    assert not sorts
    hookline_manager.register(make_plugin(log, "last", after=("3",)), "last")
    assert sorts
    assert call_order(hookline_manager, log) == [*map(str, range(19, 2, -1)), "last", "2", "1", "0"]
