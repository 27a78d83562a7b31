"""Compiled emitters against a genuine pluggy manager with the same hookspecs and the same plugins.

Plugins are made by hypothesis: any mixture of tryfirst, trylast, both styles of wrapper, argument subsets with and
without defaults, results, None and exceptions. Both managers must call the same functions with the same arguments in
the same order, and come to the same result or the same error.
"""

from dataclasses import dataclass
from typing import Any

import pluggy
from hypothesis import given
from hypothesis import strategies as st

from hookline import PluginManager
from hookline.plugin_manager import OrderError
from hookline_hookspecs import hookimpl, hookspec


class Specs:
    @hookspec
    def notify_event(self, a, b): ...

    @hookspec(kind="collect")
    def collect_event(self, a, b): ...

    @hookspec(kind="decide")
    def decide_event(self, a, b): ...

    @hookspec(kind="collect")
    def event_with_default(self, a, b=7): ...


EVENTS = ("notify_event", "collect_event", "decide_event", "event_with_default")
SIGNATURES = ("self", "self, a", "self, b", "self, a, b", "self, b, a", "self, a=1", "self, b, a=1", "self, a, other=2")
WRAPPER_STYLES = (None, "pass", "replace", "append", "swallow", "raise_before", "raise_after", "old")


class Boom(Exception):
    pass


@dataclass(frozen=True)
class Blueprint:
    """One plugin's implementation: how it is marked, and what it does."""

    number: int
    signature: str
    wrapper: str | None
    order: str | None
    result: Any

    def build(self, event: str, log: list[Any]) -> Any:
        arguments = self.signature.removeprefix("self").lstrip(", ").replace("=1", "").replace("=2", "")
        body = PLAIN if self.wrapper is None else WRAPPERS[self.wrapper]
        source = f"def {event}({self.signature}):\n    log.append(({self.number}, [{arguments}]))\n{body}"
        namespace: dict[str, Any] = {"log": log, "number": self.number, "result": self.result, "Boom": Boom}
        exec(source, namespace)
        if self.wrapper == "old":
            marker: Any = pluggy.HookimplMarker("hookline")(
                hookwrapper=True, tryfirst=self.order == "tryfirst", trylast=self.order == "trylast"
            )
        else:
            marker = hookimpl(
                wrapper=self.wrapper is not None, tryfirst=self.order == "tryfirst", trylast=self.order == "trylast"
            )
        # The policy of these plugins is to raise, since that is all that pluggy can do.
        return type("Plugin", (), {event: marker(namespace[event]), "on_error": "raise"})()


PLAIN = """\
    if result == 'boom':
        raise Boom(number)
    return result
"""
WRAPPERS = {
    "pass": "    return (yield)\n",
    "replace": "    yield\n    return ['replaced', number]\n",
    "append": "    inner = yield\n    return [*(inner if isinstance(inner, list) else [inner]), number]\n",
    "swallow": "    try:\n        return (yield)\n    except Boom:\n        log.append('swallowed')\n        return ['calm']\n",
    "raise_before": "    raise Boom(number)\n    yield\n",
    "raise_after": "    yield\n    raise Boom(number)\n",
    "old": "    outcome = yield\n    log.append(('outcome', outcome.exception is None))\n",
}

blueprints = st.builds(
    Blueprint,
    number=st.integers(0, 10_000),
    signature=st.sampled_from(SIGNATURES),
    wrapper=st.sampled_from((None, None, None, None, *WRAPPER_STYLES[1:])),
    order=st.sampled_from((None, None, "tryfirst", "trylast")),
    result=st.sampled_from((None, 0, 1, "text", (), "boom")) | st.just([1, 2]),
)
plugin_lists = st.lists(blueprints, max_size=7, unique_by=lambda blueprint: blueprint.number)


def outcome_of(call: Any, log: list[Any]) -> tuple[Any, ...]:
    """What a call did: the functions called, and the result or the error."""
    try:
        result = call(a="A", b="B")
    except Boom as error:
        return log, "raised", error.args
    return log, "returned", result


def first_failure_only(blueprints_: list[Blueprint]) -> bool:
    """pluggy stops at the first failure, ours calls the others first: they agree where there is at most one left."""
    return sum(b.result == "boom" and b.wrapper is None for b in blueprints_) == 0


@given(st.sampled_from(EVENTS), plugin_lists)
def test_results_order_arguments_and_wrappers_are_those_of_pluggy(event: str, chosen: list[Blueprint]) -> None:
    chosen = [
        b if first_failure_only([b]) else Blueprint(b.number, b.signature, b.wrapper, b.order, None) for b in chosen
    ]
    logs: list[list[Any]] = [[], [], []]
    theirs = pluggy.PluginManager("hookline")
    ours, ours_by_hook = PluginManager(), PluginManager()
    for manager, log in zip((theirs, ours, ours_by_hook), logs, strict=True):
        manager.add_hookspecs(Specs)
        for blueprint in chosen:
            manager.register(blueprint.build(event, log), name=str(blueprint.number))
    expected = outcome_of(getattr(theirs.hook, event), logs[0])
    emitted = outcome_of(getattr(ours.emit, event), logs[1])
    hooked = outcome_of(getattr(ours_by_hook.hook, event), logs[2])
    assert hooked == expected
    if event == "notify_event" and expected[1] == "returned":
        assert emitted == (expected[0], "returned", None)
    else:
        assert emitted == expected


@given(st.sampled_from(EVENTS), plugin_lists.filter(lambda chosen: any(b.result == "boom" for b in chosen)))
def test_a_failure_is_raised_as_in_pluggy_once_all_others_have_been_called(event: str, chosen: list[Blueprint]) -> None:
    chosen = [b for b in chosen if b.wrapper in (None, "pass", "swallow")]
    log: list[Any] = []
    ours = PluginManager()
    ours.add_hookspecs(Specs)
    for blueprint in chosen:
        ours.register(blueprint.build(event, log), name=str(blueprint.number))
    try:
        getattr(ours.emit, event)(a="A", b="B")
    except (Boom, ExceptionGroup) as error:
        raised = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        failing = [b.number for b in chosen if b.wrapper is None and b.result == "boom"]
        assert {e.args[0] for e in raised} <= set(failing)
    called = {entry[0] for entry in log if isinstance(entry, tuple)}
    plain = [b for b in chosen if b.wrapper is None]
    if event != "decide_event" or all(b.result in (None, "boom") for b in plain):
        assert {b.number for b in plain} <= called


@given(plugin_lists, st.data())
def test_order_by_after_and_before_moves_nothing_that_it_need_not(chosen: list[Blueprint], data: st.DataObject) -> None:
    names = [str(blueprint.number) for blueprint in chosen]
    log: list[Any] = []
    ours = PluginManager()
    ours.add_hookspecs(Specs)
    relations: dict[str, list[str]] = {}
    for blueprint in chosen:
        plugin = Blueprint(blueprint.number, "self", None, blueprint.order, None).build("notify_event", log)
        others = [name for name in names if name != str(blueprint.number)]
        after = data.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others else []
        plugin.after = tuple(after)
        try:
            ours.register(plugin, name=str(blueprint.number))
        except OrderError as error:
            assert "cycle" in str(error)
        else:
            relations[str(blueprint.number)] = after
    ours.emit.notify_event(a=1, b=2)
    called = [str(entry[0]) for entry in log]
    assert sorted(called) == sorted(relations)
    for name, after in relations.items():
        for other in after:
            if other in relations:
                assert called.index(other) < called.index(name)
    if not any(set(after) & set(relations) for after in relations.values()):
        theirs, their_log = pluggy.PluginManager("hookline"), []
        theirs.add_hookspecs(Specs)
        for blueprint in (blueprint for blueprint in chosen if str(blueprint.number) in relations):
            plain = Blueprint(blueprint.number, "self", None, blueprint.order, None)
            theirs.register(plain.build("notify_event", their_log), name=str(blueprint.number))
        theirs.hook.notify_event(a=1, b=2)
        assert called == [str(entry[0]) for entry in their_log]
