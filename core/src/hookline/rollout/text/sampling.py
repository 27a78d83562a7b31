"""Text from a transformer: prompts are read at once, then tokens sampled inside one scan with a key-value cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hookline.policies import transformer_jax
from hookline.policies.transformer import TransformerPolicy

__all__ = ["Sampled", "sample"]


class Sampled(NamedTuple):
    """What was sampled for a batch of prompts, (batch, new tokens) each."""

    tokens: jax.Array
    """The response, its end-of-text token included, then padding."""
    logprobs: jax.Array
    """The log-probability of each token under the policy itself, before temperature and top-k; 0 for padding."""
    valid: jax.Array
    """True for the tokens of the response, its end-of-text token included."""


@partial(jax.jit, static_argnames=("policy", "new_tokens", "end", "pad", "top_k", "greedy"))
def sample(
    policy: TransformerPolicy,
    weights: Mapping[str, Any],
    prompts: jax.Array,
    prompt_valid: jax.Array,
    key: jax.Array,
    temperature: float | jax.Array = 1.0,
    *,
    new_tokens: int,
    end: int,
    pad: int,
    top_k: int | None = None,
    greedy: bool = False,
) -> Sampled:
    """Continue each prompt until its end-of-text token, by at most `new_tokens` tokens.

    :param prompts: (batch, length) tokens, padded on the left.
    :param top_k: sample among the so many likeliest tokens only.
    :param greedy: take the likeliest token; temperature, top-k and the key are of no account.
    """
    length = prompts.shape[1]
    logits, cache = transformer_jax.prefill(policy, weights, prompts, prompt_valid, slots=length + new_tokens)
    batch = prompts.shape[0]
    # Drawn in bulk: a generator called on a few numbers at a time costs more than the policy.
    shape = (new_tokens, batch, policy.vocabulary if top_k is None else top_k)
    noise = jnp.zeros((new_tokens, 0)) if greedy else temperature * jax.random.gumbel(key, shape)

    def choose(logits: jax.Array, noise: jax.Array) -> jax.Array:
        if greedy:
            return jnp.argmax(logits, axis=-1)
        if top_k is None:
            return jnp.argmax(logits + noise, axis=-1)
        likeliest, tokens = jax.lax.top_k(logits, top_k)
        place = jnp.argmax(likeliest + noise, axis=-1)
        return jnp.take_along_axis(tokens, place[:, None], axis=1)[:, 0]

    def step(carry: tuple[Any, ...], xs: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, ...], Sampled]:
        logits, cache, position, ended = carry
        index, noise = xs
        token = choose(logits, noise)
        logprob = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)
        sampled = Sampled(jnp.where(ended, pad, token), jnp.where(ended, 0.0, logprob), ~ended)
        ended = ended | (token == end)
        logits, cache = transformer_jax.decode(policy, weights, token, position, length + index, cache)
        return (logits, cache, position + 1, ended), sampled

    start = (logits, cache, prompt_valid.sum(axis=1), jnp.zeros(batch, bool))
    _, sampled = jax.lax.scan(step, start, (jnp.arange(new_tokens), noise))
    return Sampled(*(array.T for array in sampled))
