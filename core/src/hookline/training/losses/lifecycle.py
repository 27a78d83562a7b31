"""The losses as a plugin among plugins: each is told of the moments that it has a method for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hookline.training.losses.loss import Loss
from hookline_hookspecs import TrainerState, hookimpl

__all__ = ["NAME", "LossLifecycle"]

MOMENTS: Final = ("on_new_training_run", "on_rollout_start", "on_mb_end", "on_train_phase_end")

NAME: Final = "losses"
"""What the losses go by among plugins."""


class LossLifecycle:
    """Implements those events that a loss overrides the method of: the others cost nothing."""

    critical = True  # what a loss raises ends the run, here as in its gradient

    def __init__(self, losses: Sequence[Loss], state: TrainerState) -> None:
        for moment in MOMENTS:
            usual = getattr(Loss, moment)
            told = [getattr(loss, moment) for loss in losses if getattr(type(loss), moment) is not usual]
            if told:
                setattr(self, moment, _implementation(moment, told, state))


def _implementation(
    moment: str, told: Sequence[Callable[[TrainerState], None]], state: TrainerState
) -> Callable[[], None]:
    @hookimpl(specname=moment, tryfirst=True)
    def tell() -> None:
        for method in told:
            method(state)

    return tell
