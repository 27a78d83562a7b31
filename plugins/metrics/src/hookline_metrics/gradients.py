"""Norm and variance of a policy's gradients, by module.

The policy is anything with `named_parameters()` whose parameters have a `grad`, such as a torch module. Gradients are
measured at the end of a minibatch, after clipping, as the optimizer saw them.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["gradient_statistics"]


def gradient_statistics(policy: Any) -> dict[str, float]:
    """`gradients/norm`, and `gradients/<module>/norm` and `/variance`; empty for a policy that has no gradients.

    Empty as well for a policy in shards (FSDP2): rank 0 has a part of each gradient, and cannot ask the others here.
    """
    named_parameters = getattr(policy, "named_parameters", None)
    if not callable(named_parameters):
        return {}
    # The sums stay tensors until the end, since `float()` of a GPU tensor waits for the GPU.
    sums: dict[str, list[Any]] = {}
    for name, parameter in named_parameters():
        gradient = getattr(parameter, "grad", None)
        if hasattr(gradient, "full_tensor"):
            return {}
        if gradient is not None:
            module = name.rpartition(".")[0] or name
            found = sums.setdefault(module, [0, 0.0, 0.0])
            found[0] += math.prod(gradient.shape)
            found[1] = found[1] + gradient.sum()
            found[2] = found[2] + (gradient * gradient).sum()
    statistics: dict[str, float] = {}
    total = 0.0
    for module, (count, sum_of_values, sum_of_squares) in sums.items():
        squares = float(sum_of_squares)
        total += squares
        mean = float(sum_of_values) / count
        statistics[f"gradients/{module}/norm"] = math.sqrt(squares)
        statistics[f"gradients/{module}/variance"] = max(0.0, squares / count - mean * mean)
    if statistics:
        statistics["gradients/norm"] = math.sqrt(total)
    return statistics
