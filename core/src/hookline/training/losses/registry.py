"""Losses by name: those that ship with Hookline, and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from hookline.plugins.errors import did_you_mean
from hookline.plugins.manager import PluginManager
from hookline.plugins.offers import gather_offers
from hookline.training.errors import TrainerConfigError, UnknownLossError
from hookline.training.losses.grpo import GRPO
from hookline.training.losses.kl import KL
from hookline.training.losses.loss import Loss
from hookline.training.losses.ppo_actor import PPOActor
from hookline.training.losses.ppo_critic import PPOCritic
from hookline.training.losses.sft import SFT

__all__ = ["OWN_LOSSES", "build_losses", "known_losses"]

OWN_LOSSES: Final[Mapping[str, type[Loss]]] = {
    "ppo_actor": PPOActor,
    "ppo_critic": PPOCritic,
    "grpo": GRPO,
    "sft": SFT,
    "kl": KL,
}


def known_losses(plugins: PluginManager) -> dict[str, type[Loss]]:
    """All losses that a config may name. A name that is given twice is an error that names both who give it."""
    losses: dict[str, type[Loss]] = {}
    for name, (giver, loss) in gather_offers(plugins, "register_losses", "a loss", OWN_LOSSES).items():
        if not (isinstance(loss, type) and issubclass(loss, Loss)):
            raise TrainerConfigError(f"{giver}: the loss {name!r} must be a Loss class, not {loss!r}")
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
