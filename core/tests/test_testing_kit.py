"""The test kit: what plugin authors are given, tested on plugins that are good and bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from hookline import PluginManager
from hookline.plugin_manager import ConfigError, PluginError
from hookline.plugin_manager.events import parse_contract
from hookline.testing import EventRecorder, check_plugin, sample_arguments
from hookline_hookspecs import TrainerState, hookimpl

if TYPE_CHECKING:
    from conftest import Site


@dataclass
class Options:
    factor: float = 2.0


class Good:
    def __init__(self, options: Options) -> None:
        self.factor = options.factor

    @hookimpl
    def collect_metrics(self, state: TrainerState) -> dict[str, float]:
        return {"scaled": self.factor * state.loss_stats["train/loss"]}

    @hookimpl(background=True)
    def on_epoch_end(self, state: TrainerState) -> None: ...


def test_a_good_plugin_passes() -> None:
    check_plugin(Good, factor=3.0)


def test_options_that_the_plugin_does_not_take_are_found() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'faktor' \(did you mean 'factor'\?\)"):
        check_plugin(Good, faktor=3.0)


def test_a_method_named_after_an_event_without_a_mark_is_found() -> None:
    class Forgetful:
        @hookimpl
        def on_epoch_start(self) -> None: ...

        def on_epoch_end(self) -> None: ...

    with pytest.raises(AssertionError, match="named after an event, but not marked with @hookimpl: on_epoch_end"):
        check_plugin(Forgetful)


def test_a_plugin_that_implements_nothing_is_found() -> None:
    class Idle: ...

    with pytest.raises(AssertionError, match="the plugin implements no event"):
        check_plugin(Idle)


@pytest.mark.parametrize("background", [False, True])
def test_a_plugin_that_fails_when_called_is_found(background: bool) -> None:
    class Failing:
        @hookimpl(background=background)
        def on_epoch_end(self) -> None:
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError, match="oh"):
        check_plugin(Failing)


def test_a_misspelt_event_is_found() -> None:
    class Misspelt:
        @hookimpl
        def on_epoch_ende(self) -> None: ...

    with pytest.raises(PluginError, match="did you mean 'on_epoch_end'"):
        check_plugin(Misspelt)


def test_a_plugin_whose_import_brings_a_framework_is_found(site: Site) -> None:
    (site.folder / "torch.py").write_text("")
    module = site.install("heavy", "import torch\nclass Plugin:\n    @hookimpl\n    def on_epoch_end(self): ...\n")
    plugin = __import__(module).Plugin
    with pytest.raises(
        AssertionError, match=f"importing {module} imports torch: import it in the function that uses it"
    ):
        check_plugin(plugin)


def test_the_recorder_keeps_events_with_their_arguments_as_they_were(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Good(Options()), "good")
    state = TrainerState(epoch=1)
    with EventRecorder(hookline_manager) as recorder:
        hookline_manager.emit.on_epoch_end(state=state)
        state.epoch = 2
        hookline_manager.hook.on_epoch_end(state=state)
        hookline_manager.emit.on_epoch_start(state=state)
    hookline_manager.emit.on_epoch_end(state=state)
    assert recorder.names() == ["on_epoch_end", "on_epoch_end", "on_epoch_start"]
    assert [event.arguments["state"].epoch for event in recorder.of("on_epoch_end")] == [1, 2]
    assert recorder.events[0].plugins == ("good",)


def test_recording_changes_no_answers(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Good(Options()), "good")
    state = TrainerState(loss_stats={"train/loss": 1.0})
    plain = hookline_manager.emit.collect_metrics(state=state)
    with EventRecorder(hookline_manager):
        recorded = hookline_manager.emit.collect_metrics(state=state)
    assert recorded.items() == plain.items() == [("good", {"scaled": 2.0})]


def test_a_state_for_a_test_is_built_in_a_word(hookline_state, tmp_path) -> None:
    state = hookline_state(epoch=3)
    assert (state.epoch, state.run_dir) == (3, tmp_path)


def test_there_is_a_sample_of_every_argument_of_every_event(hookline_manager: PluginManager) -> None:
    for event in hookline_manager.events.values():
        for name, value in sample_arguments(event).items():
            assert value is not None, f"{event.name}: {name}"


def test_sample_reports_have_exactly_the_keys_that_the_event_promises(hookline_manager: PluginManager) -> None:
    for event in hookline_manager.events.values():
        if "report_data" in event.arguments and event.name != "log_metrics":
            promised = parse_contract(event.doc).arguments["report_data"].rstrip(".")
            keys = set(sample_arguments(event)["report_data"]) - {"train/loss"}
            named = {word.split()[0] for word in promised.split(", ") if "_" in word.split()[0]}
            assert keys == named, event.name
