"""The NumPy forward of `LlamaPolicy`, which reads whole texts on a CPU without padding, and without a framework.

Texts of any lengths lie one behind the other. Only attention is computed for each by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from hookline.policies.llama import LlamaPolicy

__all__ = ["hidden_states"]

Weights = Mapping[str, np.ndarray]


def hidden_states(policy: LlamaPolicy, weights: Weights, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """What the output layer reads, (tokens of all texts, width)."""
    bounds = list(pairwise(accumulate(map(len, texts), initial=0)))
    x = weights["model.embed_tokens.weight"][np.concatenate(texts)]
    positions = np.concatenate([np.arange(end - start) for start, end in bounds])
    angles = (positions[:, None, None] * policy.frequencies()).astype(np.float32)
    rotation = np.cos(angles), np.sin(angles)
    for layer in range(policy.layers):
        name = f"model.layers.{layer}"
        mixed = _attention(policy, weights, name, x, rotation, bounds)
        x = x + _linear(weights, f"{name}.self_attn.o_proj", mixed)
        x += _feedforward(policy, weights, name, x)
    return _norm(policy, weights, "model.norm", x)


def _attention(
    policy: LlamaPolicy,
    weights: Weights,
    name: str,
    x: np.ndarray,
    rotation: tuple[np.ndarray, np.ndarray],
    bounds: Sequence[tuple[int, int]],
) -> np.ndarray:
    x = _norm(policy, weights, f"{name}.input_layernorm", x)
    q, k, v = (
        _linear(weights, f"{name}.self_attn.{kind}_proj", x).reshape(len(x), -1, policy.head_width) for kind in "qkv"
    )
    if policy.qk_norm:
        q = _norm(policy, weights, f"{name}.self_attn.q_norm", q)
        k = _norm(policy, weights, f"{name}.self_attn.k_norm", k)
    q, k = _rotate(q, rotation), _rotate(k, rotation)
    q *= 1 / math.sqrt(policy.head_width)
    queries = q.reshape(len(x), policy.kv_heads, -1, policy.head_width)  # by the key head that serves them
    mixed = np.empty_like(queries)
    longest = max(end - start for start, end in bounds)
    future = np.triu(np.full((longest, longest), -np.inf, np.float32), 1)
    for start, end in bounds:
        length = end - start
        own_k = k[start:end].transpose(1, 2, 0)[:, None]
        own_v = v[start:end].transpose(1, 0, 2)[:, None]
        scores = queries[start:end].transpose(1, 2, 0, 3) @ own_k
        scores += future[:length, :length]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=-1, keepdims=True)
        mixed[start:end] = (scores @ own_v / sums).transpose(2, 0, 1, 3)
    return mixed.reshape(len(x), -1)


def _rotate(x: np.ndarray, rotation: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Rotate the pairs of each head. A pair is an element of the first half and one of the second."""
    cosine, sine = rotation
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _feedforward(policy: LlamaPolicy, weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    x = _norm(policy, weights, f"{name}.post_attention_layernorm", x)
    gate = _linear(weights, f"{name}.mlp.gate_proj", x)
    with np.errstate(over="ignore"):  # then the gate is closed
        gate /= np.exp(-gate) + 1
    gate *= _linear(weights, f"{name}.mlp.up_proj", x)
    return _linear(weights, f"{name}.mlp.down_proj", gate)


def _linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    y: np.ndarray = x @ weights[f"{name}.weight"].T
    if f"{name}.bias" in weights:
        y += weights[f"{name}.bias"]
    return y


def _norm(policy: LlamaPolicy, weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    squares = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
    normalized: np.ndarray = x * (1 / np.sqrt(squares + policy.norm_epsilon))
    normalized *= weights[f"{name}.weight"]
    return normalized
