"""The experience buffer: the union of what losses ask for, with disagreements named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from hookline import PluginManager, hookimpl
from hookline.training import Trainer
from hookline.training.errors import ExperienceError
from hookline.training.experience import Experience
from hookline.training.losses import Field, Loss, LossConfig, actions_forward


def loss(name: str, **spec: Field) -> Loss:
    class Asking(Loss):
        def get_experience_spec(self) -> Mapping[str, Field]:
            return spec

    return Asking(name, LossConfig())


def test_the_buffer_holds_what_any_loss_asks_for_and_nothing_else() -> None:
    experience = Experience([loss("one", obs=Field("float32")), loss("two", rewards=Field("float32", ()))])
    experience.fill({"obs": torch.zeros(3, 2, 4), "rewards": torch.zeros(3, 2), "noise": torch.zeros(3, 2)}, (3, 2))
    assert experience.rows == 6
    assert {name: tuple(field.shape) for name, field in experience.flat().items()} == {"obs": (6, 4), "rewards": (6,)}


@pytest.mark.parametrize(
    ("field", "described"),
    [(Field("int64", (4,)), r"int64 of shape \(4,\)"), (Field("float32", (8,)), r"float32 of shape \(8,\)")],
)
def test_losses_that_disagree_are_both_named(field: Field, described: str) -> None:
    with pytest.raises(
        ExperienceError,
        match=rf"losses 'one' and 'two' disagree on 'obs' in the experience: float32 of shape \(4,\) and {described}",
    ):
        Experience([loss("one", obs=Field("float32", (4,))), loss("two", obs=field)])


def test_a_field_that_a_loss_can_do_without_is_needed_once_another_cannot() -> None:
    without, needs = loss("one", heat=Field("float32", optional=True)), loss("two", heat=Field("float32"))
    experience = Experience([without])
    experience.fill({}, (2,))
    assert "heat" not in experience
    with pytest.raises(ExperienceError, match="losses 'one', 'two' need 'heat' in the experience"):
        Experience([without, needs]).fill({}, (2,))


def test_losses_of_which_one_takes_anything_agree() -> None:
    experience = Experience([loss("one", obs=Field(None)), loss("two", obs=Field("float32", (4,)))])
    assert experience.spec["obs"] == Field("float32", (4,))


def test_rollouts_without_a_field_are_an_error_that_names_the_loss_and_the_nearest() -> None:
    experience = Experience([loss("one", logprobs=Field("float32"))])
    with pytest.raises(
        ExperienceError,
        match=r"loss 'one' needs 'logprobs' in the experience, which the rollouts do not have "
        r"\(did you mean 'log_probs'\?\); they have log_probs, obs",
    ):
        experience.fill({"log_probs": torch.zeros(2), "obs": torch.zeros(2)}, (2,))


def test_a_field_of_another_kind_is_an_error_that_names_the_losses() -> None:
    experience = Experience([loss("one", obs=Field("float32", (4,))), loss("two", obs=Field("float32"))])
    with pytest.raises(
        ExperienceError,
        match=r"losses 'one', 'two' need 'obs' in the experience as float32 of shape \(4,\), "
        r"but it is float64 of shape \(4,\)",
    ):
        experience.fill({"obs": torch.zeros(2, 4, dtype=torch.float64)}, (2,))


def test_a_field_that_does_not_fit_the_grid_is_an_error() -> None:
    experience = Experience([loss("one", obs=Field("float32"))])
    with pytest.raises(ExperienceError, match=r"'obs' has shape \(3, 4\), which does not begin with \(2, 3\)"):
        experience.fill({"obs": torch.zeros(3, 4)}, (2, 3))


def test_a_loss_may_store_only_what_it_has_named() -> None:
    experience = Experience([loss("one", advantages=Field("float32", (), computed=True))])
    experience.fill({}, (2,))
    with pytest.raises(
        ExperienceError, match=r"'advantage' is in no loss's experience spec \(did you mean 'advantages'"
    ):
        experience.store("advantage", torch.zeros(2))


def test_what_no_loss_has_computed_is_an_error_when_it_is_wanted() -> None:
    experience = Experience([loss("one", advantages=Field("float32", (), computed=True))])
    experience.fill({}, (2,))
    with pytest.raises(
        ExperienceError, match="loss 'one' needs 'advantages', which no loss has computed in this epoch"
    ):
        experience["advantages"]


def test_minibatches_go_through_all_rows_in_the_given_order() -> None:
    experience = Experience([loss("one", obs=Field("int64"))])
    experience.fill({"obs": torch.arange(6).reshape(3, 2)}, (3, 2))
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    assert [batch["obs"].tolist() for batch in experience.minibatches(3, order)] == [[5, 0], [3, 1], [4, 2]]
    some = [batch and batch["obs"].tolist() for batch in experience.minibatches(3, order[:2])]
    assert some == [None, [5], [0]]


def test_rows_that_can_teach_nothing_are_left_out_unless_another_loss_wants_them(
    playing: Callable[..., Trainer], hookline_manager: PluginManager
) -> None:
    class Picky(Loss):
        def rows_to_learn_from(self, experience: Experience) -> torch.Tensor:
            return torch.arange(experience.rows) < 3

        def run_train(self, shared: Any) -> torch.Tensor:
            seen.append(len(shared.batch["obs"]))
            return actions_forward(shared).values.mean()

        def get_experience_spec(self) -> dict[str, Field]:
            return {"obs": Field("float32"), "actions": Field(None)}

    class Brings:
        @hookimpl
        def register_losses(self) -> dict[str, type[Loss]]:
            return {"picky": Picky}

    hookline_manager.register(Brings())
    seen: list[int] = []
    playing(epochs=1, losses={"picky": {}}).train()
    assert sum(seen) == 3
    seen.clear()
    playing(epochs=1, losses={"picky": {}, "ppo_critic": {}}).train()
    assert sum(seen) == 32
