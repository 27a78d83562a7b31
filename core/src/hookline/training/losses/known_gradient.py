"""A loss whose gradient is written down beside it, for losses of a few numbers a row.

Most of what such a loss costs is autograd's record of it. Where the gradient is a line of its own, the line is shorter
than the record.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hookline.training.losses.loss import LossTerm

__all__ = ["with_slopes"]


def with_slopes(value: float, size: int, *slopes: tuple[Tensor, Tensor]) -> LossTerm:
    """A loss of known value and gradient; each pair is a tensor that it depends on and its gradient there.

    Autograd can differentiate the value as well: a loss may build on another one without knowing of this.
    """
    inputs, gradients = zip(*slopes, strict=True)
    number: Tensor = _KnownGradient.apply(torch.tensor(value), gradients, *inputs)  # type: ignore[no-untyped-call]
    return LossTerm(number, size, slopes)


class _KnownGradient(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor, ...], *inputs: Tensor) -> Tensor:
        del inputs
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_value: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient * of_value for gradient in ctx.gradients)
