"""Losses by name, and the events that a loss can have methods for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from hookline.errors import did_you_mean
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.training.errors import TrainerConfigError, UnknownLossError
from hookline.training.losses.grpo import GRPO
from hookline.training.losses.kl import KL
from hookline.training.losses.loss import Loss
from hookline.training.losses.ppo_actor import PPOActor
from hookline.training.losses.ppo_critic import PPOCritic
from hookline.training.losses.sft import SFT
from hookline_hookspecs import TrainerState, hookimpl

__all__ = ["NAME", "OWN_LOSSES", "LossLifecycle", "build_losses", "known_losses"]

EVENTS: Final = ("on_new_training_run", "on_rollout_start", "on_mb_end", "on_train_phase_end")

NAME: Final = "losses"
"""The plugin name of the losses."""


class LossLifecycle:
    """Forwards events to losses. Events that no loss has a method for are not implemented and cost nothing."""

    critical = True  # an error of a loss ends the run, as it does in a gradient step

    def __init__(self, losses: Sequence[Loss], state: TrainerState) -> None:
        for event in EVENTS:
            inherited = getattr(Loss, event)
            methods = [getattr(loss, event) for loss in losses if getattr(type(loss), event) is not inherited]
            if methods:
                setattr(self, event, _implementation(event, methods, state))


def _implementation(
    event: str, methods: Sequence[Callable[[TrainerState], None]], state: TrainerState
) -> Callable[[], None]:
    @hookimpl(specname=event, tryfirst=True)
    def call_methods() -> None:
        for method in methods:
            method(state)

    return call_methods


OWN_LOSSES: Final[Mapping[str, type[Loss]]] = {
    "ppo_actor": PPOActor,
    "ppo_critic": PPOCritic,
    "grpo": GRPO,
    "sft": SFT,
    "kl": KL,
}


def known_losses(plugins: PluginManager) -> dict[str, type[Loss]]:
    """All losses that a config can name. A name that is registered twice is an error."""
    losses: dict[str, type[Loss]] = {}
    for name, (source, loss) in collect_registered(plugins, "register_losses", "a loss", OWN_LOSSES).items():
        if not (isinstance(loss, type) and issubclass(loss, Loss)):
            raise TrainerConfigError(f"{source}: the loss {name!r} must be a Loss class, not {loss!r}")
        losses[name] = loss
    return losses


def build_losses(config: Mapping[str, Mapping[str, Any]], plugins: PluginManager) -> list[Loss]:
    """The losses that a config names, in its order."""
    if not config:
        raise TrainerConfigError("TrainerConfig.losses is empty: name at least one loss")
    known = known_losses(plugins)
    losses = []
    for name, options in config.items():
        if name not in known:
            raise UnknownLossError(
                f"there is no loss {name!r}{did_you_mean(name, known)}; known are {', '.join(sorted(known))}"
            )
        loss = known[name]
        names = [field.name for field in fields(loss.Config)]
        for option in options:
            if option not in names:
                raise TrainerConfigError(
                    f"loss {name!r} has no option {option!r}{did_you_mean(option, names)}; it has {', '.join(names)}"
                )
        losses.append(loss(name, loss.Config(**options)))
    return losses
