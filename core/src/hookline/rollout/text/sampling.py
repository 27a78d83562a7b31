"""Text from a transformer: prompts are read at once, then tokens sampled inside one scan with a key-value cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hookline.policies.protocol import JaxTextPolicy

__all__ = ["Sampled", "sample"]


class Sampled(NamedTuple):
    """What was sampled for a batch of prompts, (batch, new tokens) each."""

    tokens: jax.Array
    """The response, its end-of-text token included, then padding."""
    logprobs: jax.Array
    """The log-probability of each token under the policy itself, before temperature and top-k; 0 for padding."""
    valid: jax.Array
    """True for the tokens of the response, its end-of-text token included."""


@partial(jax.jit, static_argnames=("policy", "samples", "new_tokens", "end", "pad", "top_k", "greedy"))
def sample(
    policy: JaxTextPolicy,
    weights: Mapping[str, Any],
    prompts: jax.Array,
    prompt_valid: jax.Array,
    key: jax.Array,
    temperature: float | jax.Array = 1.0,
    *,
    samples: int = 1,
    new_tokens: int,
    end: int,
    pad: int,
    top_k: int | None = None,
    greedy: bool = False,
) -> Sampled:
    """Continue each prompt until its end-of-text token, by at most `new_tokens` tokens.

    :param prompts: (prompts, length) tokens, padded on the left.
    :param samples: how often each prompt is continued. It is read once; its responses are rows next to one another.
    :param top_k: sample among the so many likeliest tokens only.
    :param greedy: take the likeliest token; temperature, top-k and the key are of no account.
    """
    length = prompts.shape[1]
    # The last token is not read again.
    read = policy.jax_prefill(weights, prompts, prompt_valid, slots=length + new_tokens - 1)
    logits, cache = jax.tree.map(lambda array: jnp.repeat(array, samples, axis=0), read)
    position = jnp.repeat(prompt_valid.sum(axis=1), samples)
    batch = prompts.shape[0] * samples
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

    def write(logits: jax.Array, noise: jax.Array, ended: jax.Array) -> Sampled:
        token = choose(logits, noise)
        logprob = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)
        return Sampled(jnp.where(ended, pad, token), jnp.where(ended, 0.0, logprob), ~ended)

    def step(carry: tuple[Any, ...], xs: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, ...], Sampled]:
        logits, cache, position, ended = carry
        index, noise = xs
        written = write(logits, noise, ended)
        logits, cache = policy.jax_decode(weights, written.tokens, position, length + index, cache)
        return (logits, cache, position + 1, ended | (written.tokens == end)), written

    start = (logits, cache, position, jnp.zeros(batch, bool))
    (logits, _, _, ended), before = jax.lax.scan(step, start, (jnp.arange(new_tokens - 1), noise[:-1]))
    last = write(logits, noise[-1], ended)
    return Sampled(*(jnp.concatenate([tokens, one[None]]).T for tokens, one in zip(before, last, strict=True)))
