"""Adam for the one buffer that all parameters lie in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FlatAdam"]


class FlatAdam:
    """`torch.optim.Adam` with `fused=True` for a single parameter: bit for bit, and with the same state dict.

    Torch's own sorts parameters by type and device at each step, which takes six times as long as the update of a small
    one, and its base class imports the compiler: 800 modules, more than a second in each process.
    """

    def __init__(
        self, values: nn.Parameter, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        group = {"params": [values], "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [group]
        self._values = values
        self.state: dict[str, Tensor] = {}
        """The moments and the number of steps; empty before the first one, and whenever they are to begin anew."""

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameter from its gradient."""
        values, state, (group,) = self._values, self.state, self.param_groups
        assert values.grad is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(values)
            state["exp_avg_sq"] = torch.zeros_like(values)
        state["step"] += 1
        torch._fused_adam_(
            [values],
            [values.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Set the gradient to zero where it lies."""
        if self._values.grad is not None:
            self._values.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Adam` gives it: parameters by number, the only one being 0. Tensors are the live ones."""
        group = {**self.param_groups[0], "params": [0]}
        return {"state": {0: dict(self.state)} if self.state else {}, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state, also from one of `torch.optim.Adam` for a single parameter."""
        (group,) = state_dict["param_groups"]
        known = self.param_groups[0].keys() - {"params"}
        self.param_groups[0].update({name: group[name] for name in known})
        self.state = {name: tensor.clone() for name, tensor in state_dict["state"].get(0, {}).items()}
