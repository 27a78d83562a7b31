"""Emitting: the three kinds, argument subsets, wrong arguments, and pluggy's own call."""

import pytest

from hookline import PluginManager
from hookline_hookspecs import TrainerState, hookimpl, hookspec


class Named:
    """A plugin that offers one metric."""

    def __init__(self, value: object) -> None:
        self.value = value

    @hookimpl
    def collect_metrics(self, state: TrainerState) -> object:
        return self.value


def test_a_notify_event_returns_nothing_whatever_plugins_return(hookline_manager: PluginManager) -> None:
    class Chatty:
        @hookimpl
        def on_epoch_end(self) -> str:
            return "ignored"

    hookline_manager.register(Chatty())
    assert hookline_manager.emit.on_epoch_end(state=TrainerState()) is None


def test_a_collect_event_keeps_every_result_with_its_plugin(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Named({"a": 1}), "first")
    hookline_manager.register(Named(None), "silent")
    hookline_manager.register(Named({"b": 2}), "second")
    collected = hookline_manager.emit.collect_metrics(state=TrainerState())
    assert collected == [{"b": 2}, {"a": 1}]
    assert collected.items() == [("second", {"b": 2}), ("first", {"a": 1})]


def test_a_decide_event_takes_the_first_answer_and_asks_no_further(hookline_manager: PluginManager) -> None:
    asked = []

    class Judge:
        def __init__(self, name: str, answer: str | None) -> None:
            self.name, self.answer = name, answer

        @hookimpl
        def restore_training_run(self) -> str | None:
            asked.append(self.name)
            return self.answer

    for name, answer in (("late", "too late"), ("decider", "restored"), ("undecided", None)):
        hookline_manager.register(Judge(name, answer), name)
    assert hookline_manager.emit.restore_training_run(state=TrainerState()) == "restored"
    assert asked == ["undecided", "decider"]


def test_a_decide_event_without_an_answer_gives_none(hookline_manager: PluginManager) -> None:
    assert hookline_manager.emit.restore_training_run(state=TrainerState()) is None


def test_pluggys_own_call_gives_the_same_answers(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Named({"a": 1}), "first")
    hookline_manager.register(Named({"b": 2}), "second")
    state = TrainerState()
    assert hookline_manager.hook.collect_metrics(state=state) == hookline_manager.emit.collect_metrics(state=state)


def test_pluggys_calls_for_some_of_the_plugins_work(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Named({"a": 1}), "first")
    second = Named({"b": 2})
    hookline_manager.register(second, "second")
    subset = hookline_manager.subset_hook_caller("collect_metrics", [second])
    assert subset(state=TrainerState()) == [{"a": 1}]
    extra = hookline_manager.hook.collect_metrics.call_extra(
        [lambda state: {"c": state.step}], {"state": TrainerState()}
    )
    assert {"c": 0} in extra
    assert len(extra) == 3


def test_results_keep_their_plugin_when_a_wrapper_adds_and_drops_some(hookline_manager: PluginManager) -> None:
    class Editor:
        @hookimpl(wrapper=True)
        def collect_metrics(self):
            results = yield
            return [*results[:1], {"edited": 1}]

    hookline_manager.register(Named({"a": 1}), "first")
    hookline_manager.register(Named({"b": 2}), "second")
    hookline_manager.register(Editor(), "editor")
    collected = hookline_manager.emit.collect_metrics(state=TrainerState())
    assert collected.items() == [("second", {"b": 2}), ("editor", {"edited": 1})]


def test_an_emitter_that_passes_an_unknown_argument_learns_which_was_meant(hookline_manager: PluginManager) -> None:
    with pytest.raises(TypeError) as caught:
        hookline_manager.emit.on_epoch_end(sate=TrainerState())
    assert str(caught.value) == (
        "event on_epoch_end(state) was emitted with an argument 'sate' that it does not take (did you mean 'state'?)"
    )


def test_an_emitter_that_leaves_an_argument_out_learns_which(hookline_manager: PluginManager) -> None:
    with pytest.raises(
        TypeError, match=r"event post_training_step\(state, report_data\) was emitted without 'report_data'"
    ):
        hookline_manager.emit.post_training_step(state=TrainerState())


def test_a_wrong_argument_is_an_error_that_names_the_event_later_too(hookline_manager: PluginManager) -> None:
    hookline_manager.emit.on_epoch_end(state=TrainerState())
    with pytest.raises(
        TypeError, match=r"event on_epoch_end\(state\): emit\(\) got an unexpected keyword argument 'sate'"
    ):
        hookline_manager.emit.on_epoch_end(sate=TrainerState())


def test_pluggys_own_call_refuses_a_wrong_argument_too(hookline_manager: PluginManager) -> None:
    with pytest.raises(TypeError, match="did you mean 'state'"), pytest.warns(UserWarning, match="'state'"):
        hookline_manager.hook.on_epoch_end(sate=TrainerState())


def test_an_event_that_does_not_exist_is_an_attribute_error(hookline_manager: PluginManager) -> None:
    with pytest.raises(AttributeError, match="on_epoch_ent"):
        hookline_manager.emit.on_epoch_ent(state=TrainerState())


def test_an_argument_with_a_default_may_be_left_out_by_the_emitter(hookline_manager: PluginManager) -> None:
    class Specs:
        @hookspec(kind="collect")
        def measure(self, what, times=3): ...

    class Ruler:
        @hookimpl
        def measure(self, what, times):
            return what * times

    hookline_manager.add_hookspecs(Specs)
    hookline_manager.register(Ruler())
    for _ in range(2):
        assert hookline_manager.emit.measure(what="x") == ["xxx"]
        assert hookline_manager.emit.measure(what="x", times=1) == ["x"]


def test_an_implementation_may_give_its_arguments_defaults_and_still_gets_them(hookline_manager: PluginManager) -> None:
    seen = []

    class Relaxed:
        @hookimpl
        def post_training_step(self, state=None, report_data=None, mine="own"):
            seen.append((state.step, report_data, mine))

    hookline_manager.register(Relaxed())
    hookline_manager.emit.post_training_step(state=TrainerState(step=2), report_data={"x": 1})
    assert seen == [(2, {"x": 1}, "own")]


def test_an_event_whose_argument_begins_with_an_underscore_is_refused(hookline_manager: PluginManager) -> None:
    class Specs:
        @hookspec
        def peculiar(self, _state): ...

    with pytest.raises(ValueError, match="event peculiar: its argument '_state' must not begin with an underscore"):
        hookline_manager.add_hookspecs(Specs)


def test_a_reference_to_an_emitter_stays_good_when_plugins_come_later(hookline_manager: PluginManager) -> None:
    emit = hookline_manager.emit.collect_metrics
    assert emit(state=TrainerState()) == []
    hookline_manager.register(Named({"a": 1}))
    assert emit(state=TrainerState()) == [{"a": 1}]


def test_an_event_can_be_emitted_from_within_itself(hookline_manager: PluginManager) -> None:
    class Nested:
        @hookimpl
        def collect_metrics(self, state: TrainerState) -> object:
            inner = hookline_manager.emit.collect_metrics(state=TrainerState(step=state.step - 1)) if state.step else []
            return {"depth": state.step, "inner": len(inner)}

    hookline_manager.register(Nested())
    assert hookline_manager.emit.collect_metrics(state=TrainerState(step=3)) == [{"depth": 3, "inner": 1}]


def test_a_state_of_another_class_is_as_good_as_ours(hookline_manager: PluginManager) -> None:
    class TheirState:
        epoch = 4

    seen = []

    class Watcher:
        @hookimpl(every=2)
        def on_epoch_end(self, state):
            seen.append(state.epoch)

    hookline_manager.register(Watcher())
    hookline_manager.emit.on_epoch_end(state=TheirState())
    assert seen == [4]
