"""The torch forward of `TransformerPolicy`, as a module to train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hookline.policies.forward_torch import next_token_logprobs
from hookline.policies.transformer import TransformerPolicy
from hookline.policies.weights import load_into_module

__all__ = ["Transformer"]


class Transformer(nn.Module):
    """A module whose parameters have the names of the specification's weights."""

    def __init__(self, policy: TransformerPolicy, weights: Mapping[str, Any]) -> None:
        super().__init__()
        self.policy = policy
        self.token_embedding = nn.Embedding(policy.vocabulary, policy.width)
        self.position_embedding = nn.Embedding(policy.context, policy.width)
        self.blocks = nn.ModuleList(Block(policy) for _ in range(policy.layers))
        self.norm = nn.LayerNorm(policy.width)
        self._checkpoints_gradients = False
        load_into_module(self, policy.shapes(), weights)

    @property
    def specification(self) -> TransformerPolicy | None:
        """The specification of this module. None for a subclass, since it may compute something else."""
        return self.policy if type(self) is Transformer else None

    def gradient_checkpointing_enable(self) -> None:
        """Recompute each block's activations in the backward pass instead of keeping them."""
        self._checkpoints_gradients = True

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the next token at every position of (batch, length) tokens.

        :param valid: false where a token is padding. No other token attends to it, and it takes up no position.
        """
        length = tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        if valid is None:
            positions = torch.arange(length, device=tokens.device)
            visible = causal
        else:
            positions = (valid.long().cumsum(1) - 1).clamp(min=0)
            # Padding attends to itself, since a softmax over an empty row is NaN.
            itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
            visible = ((causal & valid[:, None, :]) | itself)[:, None]
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            if self._checkpoints_gradients and torch.is_grad_enabled():
                x = checkpoint(block, x, visible, use_reentrant=False)
            else:
                x = block(x, visible)
        logits: Tensor = functional.linear(self.norm(x), self.token_embedding.weight)
        return logits

    def token_logprobs(
        self,
        tokens: Tensor,
        valid: Tensor | None = None,
        temperature: Tensor | None = None,
        needed: Tensor | None = None,
    ) -> Tensor:
        """The log-probability of each token but the first, given those before it: (batch, length - 1).

        :param temperature: the divisor of each sequence's logits, (batch,).
        """
        del needed  # the vocabulary is small
        return next_token_logprobs(self(tokens, valid), tokens, temperature)


class Attention(nn.Module):
    def __init__(self, policy: TransformerPolicy) -> None:
        super().__init__()
        self.heads = policy.heads
        self.qkv = nn.Linear(policy.width, 3 * policy.width)
        self.out = nn.Linear(policy.width, policy.width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        output: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return output


class Feedforward(nn.Module):
    def __init__(self, policy: TransformerPolicy) -> None:
        super().__init__()
        self.up = nn.Linear(policy.width, 4 * policy.width)
        self.down = nn.Linear(4 * policy.width, policy.width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return output


class Block(nn.Module):
    def __init__(self, policy: TransformerPolicy) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(policy.width)
        self.attention = Attention(policy)
        self.norm2 = nn.LayerNorm(policy.width)
        self.mlp = Feedforward(policy)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), visible)
        output: Tensor = x + self.mlp(self.norm2(x))
        return output
