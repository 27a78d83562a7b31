"""Optimizers by name or import path, and learning-rate schedules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn

from hookline.errors import did_you_mean
from hookline.training.config import OptimizerConfig
from hookline.training.errors import TrainerConfigError
from hookline_hookspecs import TrainerState

__all__ = ["build_optimizer", "optimizer_class", "progress", "scheduled_learning_rate"]


def build_optimizer(parameters: Sequence[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that a config names, over these parameters."""
    kind = optimizer_class(config.name)
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TrainerConfigError(
            f"optimizer.name: {kind.__name__} needs a closure to evaluate the loss several times a step, which is not "
            "supported"
        )
    known = [name for name in inspect.signature(kind).parameters if name not in ("params", "lr")]
    unknown = [f"{name!r}{did_you_mean(name, known)}" for name in config.options if name not in known]
    if unknown:
        raise TrainerConfigError(
            f"optimizer.options: {kind.__name__} has no {', '.join(unknown)}; it has {', '.join(known)}"
        )
    options = dict(config.options)
    are_whole = all(type(parameter.data) is torch.Tensor for parameter in parameters)
    if "fused" in known and are_whole and {p.device.type for p in parameters} <= {"cpu", "cuda", "mps"}:
        # One kernel for all parameters; torch's default on a CPU is a loop over them. Sharded parameters (FSDP2) keep
        # the default, since not every optimizer has a fused kernel for them.
        options.setdefault("fused", True)
    try:
        optimizer: torch.optim.Optimizer = kind(list(parameters), lr=config.learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise TrainerConfigError(f"optimizer {config.name!r}: {error}") from error
    return optimizer


def optimizer_class(name: str) -> Any:
    """An optimizer class by its case-insensitive name in `torch.optim`, or by its import path."""
    own = {
        attribute.lower(): value
        for attribute, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and attribute != "Optimizer"
    }
    if name.lower() in own:
        return own[name.lower()]
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        raise TrainerConfigError(
            f"optimizer.name: torch.optim has no {name!r}{did_you_mean(name.lower(), own)}; it has "
            f"{', '.join(sorted(own))}. Name any other optimizer by its import path, such as my_package.optim:Lion"
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise TrainerConfigError(f"optimizer.name: {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise TrainerConfigError(f"optimizer.name: {name!r} is not a torch.optim.Optimizer")
    return found


def scheduled_learning_rate(config: OptimizerConfig, state: TrainerState) -> float:
    """The learning rate of the next gradient step.

    It rises linearly over `warmup_steps`. Then it stays constant, or falls to zero at the end of the run, linearly
    (`linear`) or along half a cosine (`cosine`).
    """
    if state.step < config.warmup_steps:
        return config.learning_rate * (state.step + 1) / config.warmup_steps
    done = progress(state, config.warmup_steps)
    if config.schedule == "linear":
        return config.learning_rate * (1 - done)
    if config.schedule == "cosine":
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
    return config.learning_rate


def progress(state: TrainerState, start_step: int = 0) -> float:
    """The completed share of the run, in steps after `start_step`, or in epochs if total steps are unknown."""
    if state.total_steps is not None and state.total_steps > start_step:
        return min(1.0, (state.step - start_step) / (state.total_steps - start_step))
    return 0.0 if state.total_epochs is None else state.epoch / state.total_epochs
