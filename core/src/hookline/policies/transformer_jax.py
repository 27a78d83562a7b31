"""The JAX forward of `TransformerPolicy`, as pure functions on whole sequences or on one token and a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hookline.policies.transformer import TransformerPolicy

__all__ = ["Cache", "decode", "forward", "prefill", "token_logprobs"]

Weights = Mapping[str, jax.Array]

MASKED = -1e30
"""The attention score of a masked token. Minus infinity would make a fully masked row NaN."""


class Cache(NamedTuple):
    """Keys and values of every block, and which slots are visible to attention."""

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    visible: jax.Array


def forward(
    policy: TransformerPolicy, weights: Weights, tokens: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
    """Logits of the next token at every position of (batch, length) tokens.

    :param valid: false where a token is padding. No other token attends to it, and it takes up no position.
    """
    valid = jnp.ones(tokens.shape, bool) if valid is None else valid
    x, _, _ = _run_blocks(policy, weights, tokens, valid)
    return _logits(weights, x)


def token_logprobs(
    policy: TransformerPolicy, weights: Weights, tokens: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
    """The log-probability of each token but the first, given those before it: (batch, length - 1)."""
    logprobs = jax.nn.log_softmax(forward(policy, weights, tokens, valid)[:, :-1])
    return jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[..., 0]


def prefill(
    policy: TransformerPolicy, weights: Weights, tokens: jax.Array, valid: jax.Array, slots: int
) -> tuple[jax.Array, Cache]:
    """Read prompts, padded on the left. Returns the next token's logits and a cache with `slots` slots."""
    x, keys, values = _run_blocks(policy, weights, tokens, valid, last_only=True)
    room = slots - tokens.shape[1]
    cache = Cache(
        keys=tuple(jnp.pad(k, ((0, 0), (0, 0), (0, room), (0, 0))) for k in keys),
        values=tuple(jnp.pad(v, ((0, 0), (0, 0), (0, room), (0, 0))) for v in values),
        visible=jnp.pad(valid, ((0, 0), (0, room))),
    )
    return _logits(weights, x[:, -1]), cache


def decode(
    policy: TransformerPolicy, weights: Weights, token: jax.Array, position: jax.Array, slot: jax.Array, cache: Cache
) -> tuple[jax.Array, Cache]:
    """Read one more token of each sequence into `slot`. Returns the next token's logits and the new cache."""
    batch = token.shape[0]
    visible = cache.visible.at[:, slot].set(True)
    x = weights["token_embedding.weight"][token] + weights["position_embedding.weight"][position]
    keys, values = list(cache.keys), list(cache.values)
    for block in range(policy.layers):
        name = f"blocks.{block}"
        qkv = _linear(weights, f"{name}.attention.qkv", _norm(weights, f"{name}.norm1", x))
        q, k, v = qkv.reshape(batch, 3, policy.heads, policy.head_width).swapaxes(0, 1)
        keys[block] = jax.lax.dynamic_update_slice_in_dim(keys[block], k[:, :, None], slot, axis=2)
        values[block] = jax.lax.dynamic_update_slice_in_dim(values[block], v[:, :, None], slot, axis=2)
        scores = jnp.einsum("bhd,bhsd->bhs", q, keys[block]) / math.sqrt(policy.head_width)
        scores = jnp.where(visible[:, None], scores, MASKED)
        # The softmax divides after the weighted sum, where there are fewer numbers.
        unnormalised = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = jnp.einsum("bhs,bhsd->bhd", unnormalised, values[block]) / unnormalised.sum(axis=-1, keepdims=True)
        x = x + _linear(weights, f"{name}.attention.out", mixed.reshape(batch, policy.width))
        x = x + _feedforward(weights, name, x)
    return _logits(weights, x), Cache(tuple(keys), tuple(values), visible)


def _run_blocks(
    policy: TransformerPolicy, weights: Weights, tokens: jax.Array, valid: jax.Array, *, last_only: bool = False
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """The output of each token, or of the last one only, and the keys and values of all."""
    batch, length = tokens.shape
    positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    itself = jnp.eye(length, dtype=bool)
    visible = ((jnp.tril(jnp.ones((length, length), bool)) & valid[:, None, :]) | itself)[:, None]
    x = weights["token_embedding.weight"][tokens] + weights["position_embedding.weight"][positions]
    keys, values = [], []
    for block in range(policy.layers):
        name = f"blocks.{block}"
        qkv = _linear(weights, f"{name}.attention.qkv", _norm(weights, f"{name}.norm1", x))
        q, k, v = qkv.reshape(batch, length, 3, policy.heads, policy.head_width).transpose(2, 0, 3, 1, 4)
        if last_only and block == policy.layers - 1:
            q, x, visible = q[:, :, -1:], x[:, -1:], visible[:, :, -1:]
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(policy.head_width)
        attention = jax.nn.softmax(jnp.where(visible, scores, MASKED))
        mixed = jnp.einsum("bhqk,bhkd->bhqd", attention, v).swapaxes(1, 2).reshape(x.shape)
        x = x + _linear(weights, f"{name}.attention.out", mixed)
        x = x + _feedforward(weights, name, x)
        keys.append(k)
        values.append(v)
    return x, keys, values


def _feedforward(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    hidden = _linear(weights, f"{name}.mlp.up", _norm(weights, f"{name}.norm2", x))
    return _linear(weights, f"{name}.mlp.down", jax.nn.gelu(hidden, approximate=True))


def _logits(weights: Weights, x: jax.Array) -> jax.Array:
    return _norm(weights, "norm", x) @ weights["token_embedding.weight"].T


def _linear(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
