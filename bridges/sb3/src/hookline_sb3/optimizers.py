"""Which optimizers a model has, and whose steps count."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.save_util import recursive_getattr
from torch.optim import Optimizer

__all__ = ["counted_optimizer", "optimizers_of", "variables_of"]


def optimizers_of(model: Any) -> dict[str, Optimizer]:
    """A model's optimizers by name: `policy`, or `actor`, `critic` and `ent_coef`.

    Each algorithm says itself which torch objects a saved model must have; its optimizers are among them.
    """
    names, _ = model._get_torch_save_params()
    parts = {name: recursive_getattr(model, name) for name in names}
    return {
        name.removesuffix("optimizer").rstrip("._"): own for name, own in parts.items() if isinstance(own, Optimizer)
    }


def counted_optimizer(optimizers: dict[str, Optimizer]) -> Optimizer:
    """The optimizer that steps once on every minibatch: the only one, or the critic's.

    TD3 steps its actor on every other minibatch, and SAC its entropy coefficient only if it is learned.
    """
    return optimizers.get("critic") or next(iter(optimizers.values()))


def variables_of(model: Any) -> dict[str, Any]:
    """A model's torch variables that are in no module, such as SAC's entropy coefficient, by name."""
    _, names = model._get_torch_save_params()
    return {name: recursive_getattr(model, name) for name in names}
