"""`TransformerPolicy`: a small decoder-only transformer with the architecture of GPT-2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookline.errors import HooklineError
from hookline.importing import require

if TYPE_CHECKING:
    import jax
    import numpy as np

    from hookline.policies.transformer_jax import Cache
    from hookline.policies.transformer_torch import Transformer

__all__ = ["TransformerPolicy"]


@dataclass(frozen=True)
class TransformerPolicy:
    """Learned position embeddings, pre-norm blocks, GELU, and output weights tied to the token embedding.

    Matrices are outputs x inputs. `attention.qkv` holds queries, keys and values, in this order.
    """

    vocabulary: int
    width: int = 128
    layers: int = 2
    heads: int = 4
    context: int = 128
    """The longest sequence, prompt and response together."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise HooklineError(f"width {self.width} cannot be divided among {self.heads} heads")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by name."""
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "token_embedding.weight": (self.vocabulary, width),
            "position_embedding.weight": (self.context, width),
        }
        for block in range(self.layers):
            for name, shape in {
                "norm1": (width,),
                "attention.qkv": (3 * width, width),
                "attention.out": (width, width),
                "norm2": (width,),
                "mlp.up": (4 * width, width),
                "mlp.down": (width, 4 * width),
            }.items():
                shapes[f"blocks.{block}.{name}.weight"] = shape
                shapes[f"blocks.{block}.{name}.bias"] = shape[:1]
        shapes["norm.weight"] = shapes["norm.bias"] = (width,)
        return shapes

    def initial_weights(self, seed: int = 0) -> dict[str, np.ndarray]:
        """GPT-2's initialisation: std 0.02, less for projections into the residual stream. Norms are 1, biases 0."""
        np = require("numpy", "a policy")
        generator = np.random.default_rng(seed)
        weights = {}
        for name, shape in self.shapes().items():
            if name.endswith(".bias"):
                weights[name] = np.zeros(shape, np.float32)
            elif len(shape) == 1:
                weights[name] = np.ones(shape, np.float32)
            else:
                joins_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
                std = 0.02 / math.sqrt(2 * self.layers) if joins_residual else 0.02
                weights[name] = generator.normal(0.0, std, shape).astype(np.float32)
        return weights

    def torch_module(self, weights: Mapping[str, Any] | None = None, seed: int = 0) -> Transformer:
        """The policy as a torch module for training, with these weights or new ones."""
        require("torch", "training a policy")
        from hookline.policies.transformer_torch import Transformer

        return Transformer(self, self.initial_weights(seed) if weights is None else weights)

    def jax_prefill(
        self, weights: Mapping[str, jax.Array], tokens: jax.Array, valid: jax.Array, slots: int
    ) -> tuple[jax.Array, Cache]:
        """Read prompts, padded on the left. Returns the next token's logits and a cache with `slots` slots."""
        from hookline.policies.transformer_jax import prefill

        return prefill(self, weights, tokens, valid, slots)

    def jax_decode(
        self, weights: Mapping[str, jax.Array], token: jax.Array, position: jax.Array, slot: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """Read one more token of each sequence into `slot`. Returns the next token's logits and the new cache."""
        from hookline.policies.transformer_jax import decode

        return decode(self, weights, token, position, slot, cache)
