"""Adam for the one buffer that all parameters lie in."""

from __future__ import annotations

import torch

__all__ = ["FlatAdam"]


class FlatAdam(torch.optim.Adam):
    """`torch.optim.Adam` with `fused=True` for a single parameter, bit for bit, and with the same state dict.

    What it leaves out in `step_flat` is what `step` does besides: sorting parameters by type and device, and records
    for a profiler, take six times as long as the update itself, where the parameter is small.
    """

    def __init__(
        self, values: torch.nn.Parameter, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__([values], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    @torch.no_grad()
    def step_flat(self, learning_rate: float) -> None:
        """Update the parameter from its gradient."""
        (group,) = self.param_groups
        group["lr"] = learning_rate
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:  # somebody wants to be told
            self.step()
            return
        (values,) = group["params"]
        state = self.state[values]
        if not state:  # made by the first step, and by loading a state dict
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
            lr=learning_rate,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
