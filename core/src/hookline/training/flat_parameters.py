"""All trainable parameters of a module in one buffer, and their gradients in another.

A small policy has many tiny parameters, and what an optimizer step costs is the number of calls, not of numbers. With
one buffer the optimizer, the norm of the gradient and the average over ranks are one call each. The module does not
notice: its parameters are views of the buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hookline.training.errors import TrainingError

__all__ = ["FlatParameters"]


class FlatParameters:
    """The buffers of one module. Loading a state dict into the module writes through to them."""

    def __init__(self, module: nn.Module) -> None:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise TrainingError(f"the policy, a {type(module).__name__}, has no parameter that can be trained")
        kinds = sorted({f"{parameter.dtype} on {parameter.device}" for parameter in parameters})
        if len(kinds) > 1:
            raise TrainingError(f"trainable parameters must be of one type on one device, these are {', '.join(kinds)}")
        self._parameters = parameters
        self.values = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
        self.gradient = torch.zeros_like(self.values.data)
        self._gradient_views: list[Tensor] = []
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = self.values.data[start:end].view_as(parameter)
            self._gradient_views.append(self.gradient[start:end].view_as(parameter))
            start = end
        self.zero_gradient()

    def zero_gradient(self) -> None:
        """Set all gradients to zero, and have the next backward pass add to the buffer."""
        self.gradient.zero_()
        self.values.grad = self.gradient
        # Whoever calls `zero_grad()` on the module takes the views away.
        if self._parameters[0].grad is not self._gradient_views[0]:
            for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
                parameter.grad = view
