"""What we use of pluggy's inside: each attribute is there, and does what `pluggy_internals` says of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pluggy
import pytest

from hookline.plugin_manager.pluggy_internals import is_executor, replace_executor, set_hookimpls

hookspec, hookimpl = pluggy.HookspecMarker("any"), pluggy.HookimplMarker("any")


class Specs:
    @hookspec
    def event(self, number: int) -> Any: ...


class Adding:
    def __init__(self, own: int) -> None:
        self.own = own

    @hookimpl
    def event(self, number: int) -> int:
        return number + self.own


class Around:
    @hookimpl(wrapper=True)
    def event(self) -> Iterator[None]:
        results = yield
        return [-result for result in results]


@pytest.fixture
def manager() -> pluggy.PluginManager:
    """pluggy's own, with two implementations and a wrapper."""
    manager = pluggy.PluginManager("any")
    manager.add_hookspecs(Specs)
    for plugin in (Adding(10), Around(), Adding(20)):
        manager.register(plugin)
    return manager


@contextmanager
def of(attribute: str) -> Iterator[None]:
    """Have a failure say what to look at."""
    try:
        yield
    except (AssertionError, AttributeError, TypeError) as error:
        pytest.fail(
            f"pluggy {pluggy.__version__} has changed {attribute}: {type(error).__name__}: {error}\n"
            "See hookline's pluggy_internals.py, and how the plugin manager uses it"
        )


def test_calls_of_hooks_go_through_an_attribute_that_can_be_replaced(manager: pluggy.PluginManager) -> None:
    calls: list[tuple[Any, ...]] = []
    with of("PluginManager._inner_hookexec"):
        multicall = replace_executor(manager, lambda *call: calls.append(call) or "answer")
        assert manager.hook.event(number=1) == "answer"
        ((name, hookimpls, arguments, firstresult),) = calls
        assert (name, arguments, firstresult) == ("event", {"number": 1}, False)
        assert hookimpls == manager.hook.event.get_hookimpls()
        assert multicall(name, hookimpls, arguments, firstresult) == [-21, -11]


def test_monitoring_puts_a_function_around_the_one_that_answers_calls(manager: pluggy.PluginManager) -> None:
    def execute(*call: Any) -> str:
        return "answer"

    with of("PluginManager._inner_hookexec and add_hookcall_monitoring"):
        assert not is_executor(manager, execute)
        replace_executor(manager, execute)
        assert is_executor(manager, execute)
        undo = manager.add_hookcall_monitoring(lambda *_: None, lambda *_: None)
        assert not is_executor(manager, execute)
        undo()
        assert is_executor(manager, execute)


def test_the_order_of_implementations_is_a_list_with_wrappers_at_its_end(manager: pluggy.PluginManager) -> None:
    caller = manager.hook.event
    with of("HookCaller._hookimpls"):
        first, second, wrapper = caller.get_hookimpls()
        assert wrapper.wrapper
        assert caller(number=1) == [-21, -11]
        set_hookimpls(caller, [second, first, wrapper])
        assert caller.get_hookimpls() == [second, first, wrapper]
        assert caller(number=1) == [-11, -21]
