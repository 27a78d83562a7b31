"""Builds the methods of a policy from a torch module's forward.

    forward(obs) -> (logits, value)      discrete actions: a categorical distribution
    forward(obs) -> (mean, value)        continuous actions, where the module has a `log_std`: independent normals
    forward(tokens) -> logits            text: the logits of the next token, from a causal model

The module itself is trained and saved. It is not wrapped, so the names of its parameters do not change.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookline.policies.protocol import ControlPolicy, PolicyError, TextPolicy, missing_methods

__all__ = [
    "ControlFromForward",
    "TextFromForward",
    "chosen_logprobs",
    "control_policy",
    "head_logprobs",
    "next_token_logprobs",
    "text_policy",
]

LOGITS_AT_ONCE: Final = 2**26
"""How many logits `head_logprobs` keeps: 256 MB in float32."""

HALF_LOG_TAU: Final = 0.5 * math.log(2 * math.pi)


def control_policy(module: nn.Module) -> ControlPolicy:
    """The module itself if it is a `ControlPolicy`, else a `ControlFromForward`."""
    if isinstance(module, ControlPolicy):
        return module
    missing = missing_methods(module, ControlPolicy)
    if len(missing) == 1:
        raise PolicyError(
            f"the policy, a {type(module).__name__}, has no {missing[0]}(): define both act(obs, greedy=...) and "
            "evaluate_actions(obs, actions), or neither and a forward(obs) that returns (logits, value)"
        )
    return ControlFromForward(module)


def text_policy(module: nn.Module) -> TextPolicy:
    """The module itself if it is a `TextPolicy`, else a `TextFromForward`."""
    return module if isinstance(module, TextPolicy) else TextFromForward(module)


class ControlFromForward:
    """A `ControlPolicy` from a forward that returns `(logits, value)`, or `(mean, value)` with a `log_std`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    @property
    def _log_std(self) -> Tensor | None:
        log_std: Tensor | None = getattr(self._module, "log_std", None)
        return log_std

    def outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means, (rows, outputs), and values, (rows,)."""
        found = self._module(obs)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Tensor) for part in found)):
            given = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
            raise PolicyError(
                f"the policy, a {type(self._module).__name__}: forward(obs) must return two tensors, (logits, value), "
                f"and it returned {given}. Or define act(obs, greedy=...) and evaluate_actions(obs, actions)"
            )
        outputs, values = found
        return outputs, values.squeeze(-1) if values.ndim == outputs.ndim else values

    def act(self, obs: Tensor, *, greedy: bool) -> Tensor:
        outputs, _ = self.outputs(obs)
        log_std = self._log_std
        if log_std is not None:
            return outputs if greedy else outputs + log_std.exp() * torch.randn_like(outputs)
        return outputs.argmax(-1) if greedy else outputs.softmax(-1).multinomial(1).squeeze(-1)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs, values = self.outputs(obs)
        log_std = self._log_std
        if log_std is None:
            logprobs = outputs.log_softmax(-1)
            chosen = logprobs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
            return chosen, -(logprobs.exp() * logprobs).sum(-1), values
        z = (actions - outputs) * torch.exp(-log_std)
        chosen = (-0.5 * z**2 - log_std - HALF_LOG_TAU).sum(-1)
        entropy = (0.5 + HALF_LOG_TAU + log_std).sum().expand_as(chosen)
        return chosen, entropy, values


class TextFromForward:
    """A `TextPolicy` from a forward that returns the logits of the next token. Padding must be on the right."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def token_logprobs(
        self, tokens: Tensor, valid: Tensor, temperature: Tensor | None = None, needed: Tensor | None = None
    ) -> Tensor:
        del valid, needed  # the model is causal, so padding on the right has no effect
        return next_token_logprobs(self._module(tokens), tokens, temperature)


def next_token_logprobs(logits: Tensor, tokens: Tensor, temperature: Tensor | None = None) -> Tensor:
    """The log-probability of each token but the first under the logits at the token before it.

    :param temperature: what the logits of each row are divided by.
    """
    rates = None if temperature is None else temperature[:, None].expand(-1, tokens.shape[1] - 1)
    return chosen_logprobs(logits[:, :-1], tokens[:, 1:], rates)


def chosen_logprobs(logits: Tensor, chosen: Tensor, temperature: Tensor | None = None) -> Tensor:
    """The log-probability of the chosen tokens, (...), under logits, (..., vocabulary).

    :param temperature: what the logits are divided by, (...).
    """
    if logits.dtype.itemsize < 4:
        logits = logits.float()  # sums over the vocabulary are too inexact in bfloat16
    if temperature is not None:
        logits = logits / temperature[..., None]
    logprobs: Tensor = _Chosen.apply(logits, chosen)  # type: ignore[no-untyped-call]
    return logprobs


class _Chosen(torch.autograd.Function):
    """`logits.log_softmax(-1).gather(-1, chosen)`, whose backward pass needs no further array over the vocabulary.

    The gradient of the logits replaces the saved log-probabilities, so there can be one backward pass only, and no
    second derivative.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, chosen: Tensor) -> Tensor:
        logprobs = logits.log_softmax(-1)
        ctx.save_for_backward(logprobs, chosen)
        return logprobs.gather(-1, chosen[..., None]).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise PolicyError(
                "the log-probabilities of tokens have no second derivative: compute their gradient without "
                "create_graph=True"
            )
        logprobs, chosen = ctx.saved_tensors
        gradient = gradient[..., None]
        return logprobs.exp_().mul_(-gradient).scatter_add_(-1, chosen[..., None], gradient), None


def head_logprobs(hidden: Tensor, head: nn.Module, chosen: Tensor, temperature: Tensor | None = None) -> Tensor:
    """`chosen_logprobs(head(hidden), chosen, temperature)` for hidden states, (n, width), in bounded memory.

    The logits of many tokens over a large vocabulary would take more memory than everything else. A part of them is
    computed at a time, and again in the backward pass.

    :param head: the output layer, whose `weight` is (vocabulary, width).
    """
    weight: Any = head.weight
    at_once = max(1, LOGITS_AT_ONCE // len(weight))

    def logprobs(part: slice) -> Tensor:
        return chosen_logprobs(head(hidden[part]), chosen[part], None if temperature is None else temperature[part])

    if len(hidden) <= at_once:
        return logprobs(slice(None))
    parts = [slice(start, start + at_once) for start in range(0, len(hidden), at_once)]
    return torch.cat([checkpoint(logprobs, part, use_reentrant=False, preserve_rng_state=False) for part in parts])
