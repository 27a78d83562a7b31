"""`JaxEngine`: generates text with a policy's JAX forward. One scan samples all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies import to_jax
from hookline.policies.protocol import JaxTextPolicy
from hookline.rollout.config import SamplingConfig
from hookline.rollout.engines.engine import Generated

__all__ = ["JaxEngine"]

PROMPT_GRAIN: Final = 8
"""Prompts are padded to a multiple of this many tokens, because jit compiles once for each length."""

PAD: Final = 0
NEVER: Final = -1
"""A stop token that is never sampled."""


class JaxEngine:
    """Prefills each prompt once for all of its samples, and decodes with a key-value cache."""

    def __init__(self, policy: JaxTextPolicy) -> None:
        self._policy = policy
        self._weights: Mapping[str, jax.Array] = {}
        self.context = policy.context
        self.vocabulary = policy.vocabulary
        self.version: int | None = None

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Load weights from any framework. JAX arrays are immutable and need no copy."""
        are_jax = all(isinstance(array, jax.Array) for array in weights.values())
        self._weights = weights if are_jax else to_jax(weights)
        self.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        key: jax.Array,
        *,
        max_new_tokens: int,
        stop: int | None = None,
    ) -> Generated:
        longest = max(1, *map(len, prompts))
        length = max(longest, min(self.context - max_new_tokens, -(-longest // PROMPT_GRAIN) * PROMPT_GRAIN))
        tokens = np.full((len(prompts), length), PAD, np.int32)
        valid = np.zeros((len(prompts), length), bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            valid[row, length - len(prompt) :] = True
        sampled = _sample(
            self._policy,
            self._weights,
            tokens,
            valid,
            key,
            sampling.temperature or 1.0,
            sampling.top_p,
            samples=sampling.samples_per_prompt,
            new_tokens=max_new_tokens,
            stop=NEVER if stop is None else stop,
            top_k=sampling.top_k,
            greedy=sampling.temperature == 0,
        )
        return Generated(*jax.tree.map(np.array, sampled))


class _Sampled(NamedTuple):
    tokens: jax.Array
    logprobs: jax.Array
    valid: jax.Array
    log_mass: jax.Array | None


@partial(jax.jit, static_argnames=("policy", "samples", "new_tokens", "stop", "top_k", "greedy"))
def _sample(
    policy: JaxTextPolicy,
    weights: Mapping[str, Any],
    prompts: jax.Array,
    prompt_valid: jax.Array,
    key: jax.Array,
    temperature: float | jax.Array,
    top_p: float | jax.Array | None,
    *,
    samples: int,
    new_tokens: int,
    stop: int,
    top_k: int | None,
    greedy: bool,
) -> _Sampled:
    """:param prompts: (prompts, length) tokens, padded on the left."""
    length = prompts.shape[1]
    # The last token is not fed back, so it needs no slot.
    read = policy.jax_prefill(weights, prompts, prompt_valid, slots=length + new_tokens - 1)
    logits, cache = jax.tree.map(lambda array: jnp.repeat(array, samples, axis=0), read)
    position = jnp.repeat(prompt_valid.sum(axis=1), samples)
    batch = prompts.shape[0] * samples
    # Drawn in bulk, because drawing a few numbers at a time costs more than the policy.
    shape = (new_tokens, batch, policy.vocabulary if top_k is None else top_k)
    noise = jnp.zeros((new_tokens, 0)) if greedy else jax.random.gumbel(key, shape)

    def write(logits: jax.Array, noise: jax.Array, ended: jax.Array) -> _Sampled:
        if greedy:
            token, logprob, log_mass = _likeliest(logits)
        elif top_k is None and top_p is None:
            token, logprob, log_mass = _draw(logits / temperature, noise)
        else:
            token, logprob, log_mass = _draw_truncated(logits / temperature, noise, top_k, top_p)
        return _Sampled(
            jnp.where(ended, PAD, token),
            jnp.where(ended, 0.0, logprob),
            ~ended,
            None if log_mass is None else jnp.where(ended, 0.0, log_mass),
        )

    def step(carry: tuple[Any, ...], xs: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, ...], _Sampled]:
        logits, cache, position, ended = carry
        index, noise = xs
        written = write(logits, noise, ended)
        logits, cache = policy.jax_decode(weights, written.tokens, position, length + index, cache)
        return (logits, cache, position + 1, ended | (written.tokens == stop)), written

    start = (logits, cache, position, jnp.zeros(batch, bool))
    (logits, _, _, ended), before = jax.lax.scan(step, start, (jnp.arange(new_tokens - 1), noise[:-1]))
    last = write(logits, noise[-1], ended)
    whole: _Sampled = jax.tree.map(lambda tokens, one: jnp.concatenate([tokens, one[None]]).T, before, last)
    return whole


_Choice = tuple[jax.Array, jax.Array, jax.Array | None]
"""The token, its log-probability, and the log of the mass that truncation kept."""


def _likeliest(logits: jax.Array) -> _Choice:
    return _with_logprob(logits, jnp.argmax(logits, axis=-1))


def _draw(logits: jax.Array, noise: jax.Array) -> _Choice:
    return _with_logprob(logits, jnp.argmax(logits + noise, axis=-1))


def _with_logprob(logits: jax.Array, token: jax.Array) -> _Choice:
    return token, _pick(logits, token) - jax.nn.logsumexp(logits, axis=-1), None


def _draw_truncated(logits: jax.Array, noise: jax.Array, top_k: int | None, top_p: float | jax.Array | None) -> _Choice:
    """Sample from the `top_k` likeliest tokens, and of those from the fewest whose probabilities reach `top_p`."""
    kept, tokens = jax.lax.top_k(logits, logits.shape[-1] if top_k is None else top_k)
    if top_p is not None:
        shares = jax.nn.softmax(kept, axis=-1)
        before = jnp.cumsum(shares, axis=-1) - shares
        # The likeliest token is always kept, and so is the one that reaches `top_p`.
        kept = jnp.where(before < top_p, kept, -jnp.inf)
    place = jnp.argmax(kept + noise, axis=-1)
    mass = jax.nn.logsumexp(kept, axis=-1)
    return _pick(tokens, place), _pick(kept, place) - mass, mass - jax.nn.logsumexp(logits, axis=-1)


def _pick(values: jax.Array, place: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, place[:, None], axis=1)[:, 0]
