"""Linear layers by oneDNN, where torch would multiply float32 matrices with MKL on a processor of AMD.

MKL does not use all of such a processor: oneDNN, which torch brings too, takes half its time. The layers compute the
same to rounding. Without this file everything works, only slower.
"""

from __future__ import annotations

import platform
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

__all__ = ["use_onednn"]

LEAST_PRODUCTS: Final = 1 << 20
"""Smaller layers are left to torch: there, a call takes longer than the product."""


def use_onednn(policy: nn.Module) -> None:
    """Have oneDNN compute the linear layers of a policy, if that is faster on this machine.

    The modules, their parameters and their state dicts stay as they are.
    """
    if _is_faster():
        for module in policy.modules():
            if type(module) is nn.Linear:
                module.forward = partial(_forward, module)  # type: ignore[method-assign]


@cache
def _is_faster() -> bool:
    return (
        hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and "AuthenticAMD" in _processor()
    )


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8") if file.exists() else platform.processor()


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(x, layer.weight, layer.bias)
    if x.ndim < 2 or x.numel() * layer.out_features < LEAST_PRODUCTS:
        return nn.functional.linear(x, layer.weight, layer.bias)
    y: Tensor = _Linear.apply(x.flatten(0, -2), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], layer.out_features)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # As torch does: the input of a frozen layer is not kept for the backward pass.
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        # oneDNN's product has no derivative, so a gradient that has one itself is left to torch.
        product = nn.functional.linear if torch.is_grad_enabled() else _product
        if ctx.needs_input_grad[0]:
            of_x = product(gradient, weight.T)
        if ctx.needs_input_grad[1]:
            # oneDNN prefers the longer side in the rows of its result.
            is_wide = x.shape[1] < gradient.shape[1]
            of_weight = product(x.T, gradient.T).T if is_wide else product(gradient.T, x.T)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_x, of_weight, of_bias
