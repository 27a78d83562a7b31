"""Plugins come, go and are replaced at any moment, also while an event is being emitted."""

import threading

import pytest

from hookline import PluginManager
from hookline.plugin_manager import PluginError
from hookline_hookspecs import TrainerState, hookimpl


def make_plugin(log: list[str], name: str, then=None) -> object:
    class Plugin:
        @hookimpl
        def on_epoch_end(self) -> None:
            log.append(name)
            if then is not None:
                then()

    return Plugin()


def emit(manager: PluginManager) -> None:
    manager.emit.on_epoch_end(state=TrainerState())


def test_a_plugin_registered_inside_an_event_is_called_from_the_next_on(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    new = make_plugin(log, "new")
    hookline_manager.register(
        make_plugin(log, "first", lambda: hookline_manager.has_plugin("new") or hookline_manager.register(new, "new"))
    )
    emit(hookline_manager)
    assert log == ["first"]
    emit(hookline_manager)
    assert log == ["first", "new", "first"]


def test_a_plugin_unregistered_inside_an_event_is_still_called_in_this_one(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    other = make_plugin(log, "other")
    hookline_manager.register(other, "other")
    first = make_plugin(log, "first", lambda: hookline_manager.unregister(name="other"))
    hookline_manager.register(first, "first")
    emit(hookline_manager)
    assert log == ["first", "other"]
    emit(hookline_manager)
    assert log == ["first", "other", "first"]


def test_a_plugin_can_unregister_itself(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    once = make_plugin(log, "once", lambda: hookline_manager.unregister(name="once"))
    hookline_manager.register(once, "once")
    emit(hookline_manager)
    emit(hookline_manager)
    assert log == ["once"]


def test_a_replacement_is_called_where_the_old_plugin_was(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    for name in ("a", "b", "c"):
        hookline_manager.register(make_plugin(log, name), name)
    old = hookline_manager.replace("b", make_plugin(log, "new b"))
    emit(hookline_manager)
    assert log == ["c", "new b", "a"]
    assert not hookline_manager.is_registered(old)


def test_a_replacement_that_cannot_be_registered_leaves_the_old_plugin(hookline_manager: PluginManager) -> None:
    log: list[str] = []

    class Bad:
        @hookimpl
        def on_epoch_ended(self) -> None: ...

    for name in ("a", "b", "c"):
        hookline_manager.register(make_plugin(log, name), name)
    with pytest.raises(PluginError, match="on_epoch_ended"):
        hookline_manager.replace("b", Bad())
    emit(hookline_manager)
    assert log == ["c", "b", "a"]


def test_replacing_a_plugin_that_is_not_there_is_an_error_with_the_nearest(hookline_manager: PluginManager) -> None:
    hookline_manager.register(make_plugin([], "x"), "metrics")
    with pytest.raises(PluginError, match=r"there is no plugin 'metric' to replace \(did you mean 'metrics'\?\)"):
        hookline_manager.replace("metric", object())


def test_a_plugin_without_references_is_freed(hookline_manager: PluginManager) -> None:
    import gc
    import weakref

    plugin = make_plugin([], "x")
    alive = weakref.ref(plugin)
    hookline_manager.register(plugin, "x")
    emit(hookline_manager)
    hookline_manager.unregister(plugin)
    emit(hookline_manager)
    del plugin
    gc.collect()
    assert alive() is None


def test_many_threads_may_emit_while_plugins_come_and_go(hookline_manager: PluginManager) -> None:
    errors: list[BaseException] = []
    stop = threading.Event()

    def emit_until_stopped() -> None:
        try:
            while not stop.is_set():
                emit(hookline_manager)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=emit_until_stopped) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(60):
        plugin = make_plugin([], "x")
        hookline_manager.register(plugin, f"x{round_}")
        hookline_manager.unregister(plugin)
    stop.set()
    for thread in threads:
        thread.join(500)
    assert errors == []


def test_plugins_without_a_name_go_by_their_class(hookline_manager: PluginManager) -> None:
    assert [hookline_manager.register(make_plugin([], "x")) for _ in range(3)] == ["Plugin", "Plugin-2", "Plugin-3"]


def test_a_blocked_name_is_not_registered(hookline_manager: PluginManager) -> None:
    log: list[str] = []
    hookline_manager.set_blocked("x")
    assert hookline_manager.register(make_plugin(log, "x"), "x") is None
    emit(hookline_manager)
    assert log == []
