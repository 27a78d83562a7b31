"""The state, and the frozen view of it that other threads get."""

import dataclasses
import json
from dataclasses import FrozenInstanceError

import pytest

import hookline_hookspecs
from hookline_hookspecs import HookContext, LiveObjectError, TrainerState


def test_every_record_can_be_built_without_arguments() -> None:
    records = [
        getattr(hookline_hookspecs, name)
        for name in hookline_hookspecs.__all__
        if dataclasses.is_dataclass(getattr(hookline_hookspecs, name))
    ]
    names = {record.__name__ for record in records if record.__name__ not in ("Every", "Cycle", "At")}
    assert names == {
        "CheckpointRecord", "Episode", "EpisodeBatch", "EvalRewardSummary", "EvaluationRequest", "EvaluationResult",
        "HookContext", "ReplayRecord", "Rollout", "TrainerState", "VerificationReport",
    }  # fmt: skip
    for name in names:
        getattr(hookline_hookspecs, name)()


def test_a_frozen_view_keeps_the_counters_it_was_taken_with() -> None:
    state = TrainerState(step=3, loss_stats={"loss": 1.0})
    view = state.frozen()
    state.step = 4
    state.loss_stats["loss"] = 2.0
    assert (view.step, view.loss_stats) == (3, {"loss": 1.0})


def test_a_frozen_view_cannot_be_changed() -> None:
    view = TrainerState(loss_stats={"loss": 1.0}).frozen()
    view_of_shared = TrainerState().frozen().shared
    with pytest.raises(FrozenInstanceError, match=r"cannot set state\.step"):
        view.step = 5
    with pytest.raises(TypeError, match="frozen view"):
        view.loss_stats["loss"] = 2.0
    with pytest.raises(TypeError, match="frozen view"):
        view.loss_stats.update(loss=2.0)
    with pytest.raises(TypeError, match="frozen view"):
        view_of_shared["mine"] = {}


def test_a_frozen_view_can_be_written_as_json() -> None:
    view = TrainerState(loss_stats={"loss": 1.0}).frozen()
    assert json.loads(json.dumps(view.loss_stats)) == {"loss": 1.0}


@pytest.mark.parametrize("name", ["policy", "optimizer", "experience"])
def test_a_frozen_view_refuses_what_the_training_thread_goes_on_changing(name: str) -> None:
    with pytest.raises(LiveObjectError, match=rf"state\.{name} changes while a background implementation runs"):
        getattr(TrainerState(**{name: object()}).frozen(), name)
    assert getattr(TrainerState().frozen(), name) is None


def test_a_frozen_view_is_its_own_frozen_view_and_can_be_shown() -> None:
    view = TrainerState(policy=object(), step=2).frozen()
    assert view.frozen() is view
    assert "step=2" in repr(view)


def test_a_misspelt_field_of_the_state_is_an_error() -> None:
    with pytest.raises(AttributeError, match="epochs"):
        TrainerState().epochs = 3  # type: ignore[attr-defined]


def test_plugins_share_values_under_their_own_names() -> None:
    state = TrainerState()
    state.shared["checkpoint"]["latest"] = "epoch-000010"
    assert state.shared["absent"] == {}
    view = state.frozen()
    state.shared["checkpoint"]["latest"] = "epoch-000020"
    assert view.shared["checkpoint"]["latest"] == "epoch-000010"
    assert view.shared["never-written"] == {}


def test_a_frozen_context_keeps_its_metadata() -> None:
    context = HookContext(step=1, metadata={"reward": 1.0})
    view = context.frozen()
    context.metadata["reward"] = 0.0
    assert view.metadata == {"reward": 1.0}
