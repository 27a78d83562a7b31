"""The JAX forward of `LlamaPolicy`, as pure functions: one pass over the prompts, then one token and a cache.

Everything is computed in the dtype of the weights, but norms, attention's softmax and the logits in float32. A layer
with weights `<layer>.lora_A.weight` and `<layer>.lora_B.weight` has their product added to its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies.llama import LlamaPolicy

__all__ = ["Cache", "decode", "prefill"]

Weights = Mapping[str, jax.Array]

MASKED = -1e30
"""The attention score of a masked token. Minus infinity would make a fully masked row NaN."""


class Cache(NamedTuple):
    """Keys and values of every layer, and which slots are visible to attention.

    Keys are (batch, heads, head width, slots) and values (batch, heads, slots, head width). So both products of
    attention run along their last axis, which is faster on a CPU.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    visible: jax.Array


def prefill(
    policy: LlamaPolicy, weights: Weights, tokens: jax.Array, valid: jax.Array, slots: int
) -> tuple[jax.Array, Cache]:
    """Read prompts, padded on the left. Returns the next token's logits and a cache with `slots` slots."""
    x, keys, values = _run_layers(policy, weights, tokens, valid)
    none, room = (0, 0), (0, slots - tokens.shape[1])
    cache = Cache(
        keys=tuple(jnp.pad(k, (none, none, none, room)) for k in keys),
        values=tuple(jnp.pad(v, (none, none, room, none)) for v in values),
        visible=jnp.pad(valid, (none, room)),
    )
    return _logits(policy, weights, x), cache


def decode(
    policy: LlamaPolicy, weights: Weights, token: jax.Array, position: jax.Array, slot: jax.Array, cache: Cache
) -> tuple[jax.Array, Cache]:
    """Read one more token of each sequence into `slot`. Returns the next token's logits and the new cache."""
    batch = token.shape[0]
    visible = cache.visible.at[:, slot].set(True)
    x = weights["model.embed_tokens.weight"][token]
    rotation = _rotation(policy, position, x.dtype)
    keys, values = list(cache.keys), list(cache.values)
    for layer in range(policy.layers):
        name = f"model.layers.{layer}"
        q, k, v = _queries_keys_values(policy, weights, name, x, rotation)
        keys[layer] = jax.lax.dynamic_update_slice_in_dim(keys[layer], k[..., None], slot, axis=3)
        values[layer] = jax.lax.dynamic_update_slice_in_dim(values[layer], v[:, :, None], slot, axis=2)
        grouped = q.reshape(batch, policy.kv_heads, -1, policy.head_width)
        scores = jnp.einsum("bkgd,bkds->bkgs", grouped, keys[layer]).astype(jnp.float32) / math.sqrt(policy.head_width)
        scores = jnp.where(visible[:, None, None], scores, MASKED)
        # The softmax divides after the weighted sum, where there are fewer numbers.
        unnormalised = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = jnp.einsum("bkgs,bksd->bkgd", unnormalised.astype(x.dtype), values[layer])
        mixed = (mixed / unnormalised.sum(axis=-1, keepdims=True)).astype(x.dtype)
        x = x + _linear(policy, weights, f"{name}.self_attn.o_proj", mixed.reshape(batch, -1))
        x = x + _feedforward(policy, weights, name, x)
    return _logits(policy, weights, x), Cache(tuple(keys), tuple(values), visible)


def _run_layers(
    policy: LlamaPolicy, weights: Weights, tokens: jax.Array, valid: jax.Array
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """The last token's output, and the keys and values of all. The last layer computes no other output."""
    batch, length = tokens.shape
    positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
    itself = jnp.eye(length, dtype=bool)
    visible = (jnp.tril(jnp.ones((length, length), bool)) & valid[:, None, :]) | itself
    x = weights["model.embed_tokens.weight"][tokens]
    rotation = _rotation(policy, positions, x.dtype)
    keys, values = [], []
    for layer in range(policy.layers):
        name = f"model.layers.{layer}"
        q, k, v = (array.swapaxes(1, 2) for array in _queries_keys_values(policy, weights, name, x, rotation))
        if layer == policy.layers - 1:
            q, x, visible = q[:, :, -1:], x[:, -1:], visible[:, -1:]
        grouped = q.reshape(batch, policy.kv_heads, -1, q.shape[2], policy.head_width)
        scores = jnp.einsum("bkgqd,bksd->bkgqs", grouped, k).astype(jnp.float32) / math.sqrt(policy.head_width)
        attention = jax.nn.softmax(jnp.where(visible[:, None, None], scores, MASKED)).astype(x.dtype)
        mixed = jnp.einsum("bkgqs,bksd->bqkgd", attention, v).reshape(*x.shape[:2], -1)
        x = x + _linear(policy, weights, f"{name}.self_attn.o_proj", mixed)
        x = x + _feedforward(policy, weights, name, x)
        keys.append(k.swapaxes(2, 3))
        values.append(v)
    return x[:, -1], keys, values


def _queries_keys_values(
    policy: LlamaPolicy, weights: Weights, name: str, x: jax.Array, rotation: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of tokens of any leading shape, (..., heads, head width) each."""
    x = _norm(policy, weights, f"{name}.input_layernorm", x)
    q, k, v = (
        _linear(policy, weights, f"{name}.self_attn.{kind}_proj", x).reshape(*x.shape[:-1], -1, policy.head_width)
        for kind in "qkv"
    )
    if policy.qk_norm:
        q = _norm(policy, weights, f"{name}.self_attn.q_norm", q)
        k = _norm(policy, weights, f"{name}.self_attn.k_norm", k)
    return _rotate(q, rotation), _rotate(k, rotation), v


def _rotation(policy: LlamaPolicy, positions: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The cosine and sine of each pair's angle, (2, ..., 1, head width / 2): the same for all heads."""
    angles = positions[..., None, None] * policy.frequencies().astype(np.float32)
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)]).astype(dtype)


def _rotate(x: jax.Array, rotation: jax.Array) -> jax.Array:
    """Rotate the pairs of each head. A pair is an element of the first half and one of the second."""
    cosine, sine = rotation
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _feedforward(policy: LlamaPolicy, weights: Weights, name: str, x: jax.Array) -> jax.Array:
    x = _norm(policy, weights, f"{name}.post_attention_layernorm", x)
    gate = jax.nn.silu(_linear(policy, weights, f"{name}.mlp.gate_proj", x))
    return _linear(policy, weights, f"{name}.mlp.down_proj", gate * _linear(policy, weights, f"{name}.mlp.up_proj", x))


def _logits(policy: LlamaPolicy, weights: Weights, x: jax.Array) -> jax.Array:
    x = _norm(policy, weights, "model.norm", x)
    if policy.tied:
        return (x @ weights["model.embed_tokens.weight"].T).astype(jnp.float32)
    return _linear(policy, weights, "lm_head", x).astype(jnp.float32)


def _linear(policy: LlamaPolicy, weights: Weights, name: str, x: jax.Array) -> jax.Array:
    y = x @ weights[f"{name}.weight"].T
    if f"{name}.bias" in weights:
        y = y + weights[f"{name}.bias"]
    if f"{name}.lora_A.weight" in weights:
        y = y + policy.lora_scale * (x @ weights[f"{name}.lora_A.weight"].T) @ weights[f"{name}.lora_B.weight"].T
    return y


def _norm(policy: LlamaPolicy, weights: Weights, name: str, x: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    scale = jax.lax.rsqrt((exact**2).mean(-1, keepdims=True) + policy.norm_epsilon)
    return (exact * scale).astype(x.dtype) * weights[f"{name}.weight"]
