"""Draws the next token of each row from its logits, in JAX."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["Choice", "draw", "draw_nucleus", "draw_sorted", "likeliest"]

Choice = tuple[jax.Array, jax.Array, jax.Array | None]
"""The token, its log-probability, and the log of the mass that truncation kept."""


def likeliest(logits: jax.Array) -> Choice:
    token = jnp.argmax(logits, axis=-1)
    return token, _pick(logits, token) - jax.nn.logsumexp(logits, axis=-1), None


def draw(logits: jax.Array, uniform: jax.Array) -> Choice:
    token, mass = _place(logits, uniform)
    return token, _pick(logits, token) - mass, None


def draw_sorted(logits: jax.Array, uniform: jax.Array, candidates: int, top_k: Any, top_p: Any) -> Choice:
    """Sample from the `top_k` likeliest tokens, and of those from the fewest whose probabilities reach `top_p`."""
    kept, tokens = jax.lax.top_k(logits, candidates)
    kept = jnp.where(jnp.arange(candidates) < top_k, kept, -jnp.inf)
    shares = jax.nn.softmax(kept, axis=-1)
    kept = jnp.where(jnp.cumsum(shares, axis=-1) - shares < top_p, kept, -jnp.inf)
    place, mass = _place(kept, uniform)
    return _pick(tokens, place), _pick(kept, place) - mass, mass - jax.nn.logsumexp(logits, axis=-1)


def draw_nucleus(logits: jax.Array, uniform: jax.Array, top_p: float | jax.Array) -> Choice:
    kept = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
    token, mass = _place(kept, uniform)
    return token, _pick(kept, token) - mass, mass - jax.nn.logsumexp(logits, axis=-1)


def _nucleus(logits: jax.Array, top_p: float | jax.Array) -> jax.Array:
    """Which of the tokens are the fewest whose probabilities reach `top_p`. Tokens as likely as the last are kept too.

    The least probability of them is found by bisection, because to sort a large vocabulary takes much longer. It goes
    by the bits of the numbers, which for positive ones are in the same order, so that it is exact after 31 steps.
    """
    shares = jax.nn.softmax(logits, axis=-1)
    bits = jax.lax.bitcast_convert_type(shares, jnp.int32)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        enough, too_few = bounds
        middle = enough + (too_few - enough) // 2
        reaches = jnp.where(bits >= middle, shares, 0.0).sum(axis=-1, keepdims=True) >= top_p
        return jnp.where(reaches, middle, enough), jnp.where(reaches, too_few, middle)

    none = bits.max(axis=-1, keepdims=True) + 1
    least, _ = jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(none), none))
    kept: jax.Array = bits >= least
    return kept


def _place(logits: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A place drawn from each row of logits with one number from 0 to 1, and the logsumexp of the row.

    The place is where the running sum of the probabilities passes the number. It is found in two steps, first among
    blocks of tokens, then within one, so that the running sums are short. One number for each token (Gumbel noise)
    would be simpler, but to draw it takes longer than a small policy does, and it needs the memory of a vocabulary.
    """
    rows, size = logits.shape
    width = math.isqrt(size - 1) + 1
    top = logits.max(axis=-1, keepdims=True)
    shares = jnp.pad(jnp.exp(logits - top), ((0, 0), (0, -size % width))).reshape(rows, -1, width)
    blocks = shares.sum(axis=-1)
    ends = jnp.cumsum(blocks, axis=-1)
    total = ends[:, -1]
    block = _first_past(blocks, ends, uniform * total)
    within = jnp.take_along_axis(shares, block[:, None, None], axis=1)[:, 0]
    rest = uniform * total - (_pick(ends, block) - _pick(blocks, block))
    place = block * width + _first_past(within, jnp.cumsum(within, axis=-1), rest)
    return place, jnp.log(total) + top[:, 0]


def _first_past(shares: jax.Array, sums: jax.Array, target: jax.Array) -> jax.Array:
    """The first place whose running sum is past the target. Rounding never makes it one that has no share."""
    return jnp.argmax(jnp.where(shares > 0, sums > target[:, None], -1), axis=-1)


def _pick(values: jax.Array, place: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, place[:, None], axis=1)[:, 0]
