"""`JaxEngine`: generates text with a policy's JAX forward. One compiled loop samples all tokens."""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies.protocol import JaxTextPolicy
from hookline.policies.weights import share_with_jax
from hookline.rollout.config import SamplingConfig
from hookline.rollout.engines.engine import Generated

__all__ = ["JaxEngine", "padded_length", "padded_size"]

PAD: Final = 0

MIN_ROWS: Final = 32
"""The fewest responses that are worth a thread of their own."""


_engines: weakref.WeakSet[JaxEngine] = weakref.WeakSet()


@atexit.register
def _let_go_of_weights() -> None:
    # They may be memory of torch, which takes the GIL to free it. A thread of XLA that does so after the interpreter
    # has ended aborts the process.
    for engine in list(_engines):
        engine._weights = {}


class JaxEngine:
    """Prefills each prompt once for all of its samples, and decodes with a key-value cache.

    :param weights: the policy's weights by name, from any framework.
    :param precision: the dtype that weights are cast to. fp32 weights in memory that JAX can use are not copied.
    """

    def __init__(
        self,
        policy: JaxTextPolicy,
        weights: Mapping[str, Any] | None = None,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        self._policy = policy
        self._dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
        self._weights: dict[str, jax.Array] = {}
        self.context = policy.context
        self.vocabulary = policy.vocabulary
        self.version: int | None = None
        _engines.add(self)
        if weights is not None:
            self.update_weights(weights, None)

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Load weights from any framework. Those that are not given keep their values."""
        self._weights = {**self._weights, **share_with_jax(weights, self._dtype)}
        self.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        key: jax.Array,
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
    ) -> Generated:
        samples, longest = sampling.samples_per_prompt, max(1, *map(len, prompts))
        rows, length = len(prompts), padded_length(longest)
        if samples == 1:
            rows, length = padded_size(rows), padded_size(longest)
        length = max(longest, min(self.context - max_new_tokens, length))
        tokens = np.full((rows, length), PAD, np.int32)
        valid = np.zeros((rows, length), bool)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
            valid[row, length - len(prompt) :] = True
        uniform = np.zeros((max_new_tokens, rows * samples), np.float32)
        uniform[:, : len(prompts) * samples] = jax.random.uniform(key, (max_new_tokens, len(prompts) * samples))
        is_padding = np.arange(rows) >= len(prompts)
        valid[is_padding, -1] = True  # attention needs a token

        def generate(part: slice) -> Generated:
            sampled = _sample(
                self._policy,
                self._weights,
                tokens[part],
                valid[part],
                uniform[:, part.start * samples : part.stop * samples],
                is_padding[part],
                sampling.temperature or 1.0,
                sampling.top_p,
                samples=samples,
                new_tokens=max_new_tokens,
                stop=tuple(stop),
                top_k=sampling.top_k,
                greedy=sampling.temperature == 0,
            )
            return Generated(*jax.tree.map(np.array, sampled))

        parts = _parts(rows, samples)
        if len(parts) == 1:
            made = [generate(parts[0])]
        else:
            with ThreadPoolExecutor(len(parts)) as threads:
                made = list(threads.map(generate, parts))
        wanted = len(prompts) * samples
        whole: Generated = jax.tree.map(lambda *arrays: np.concatenate(arrays)[:wanted], *made)
        return whole


def _parts(prompts: int, samples: int) -> list[slice]:
    """Parts of equal size that are generated in parallel, one for each core. On a GPU it is one part.

    XLA computes the small matrix products of a decode step on one core.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = min(cores, prompts * samples // MIN_ROWS) if jax.default_backend() == "cpu" else 1
    count = max((n for n in range(1, wanted + 1) if prompts % n == 0), default=1)
    size = prompts // count
    return [slice(start, start + size) for start in range(0, prompts, size)]


def padded_length(length: int) -> int:
    """The length that prompts are padded to, because jit compiles once for each length.

    Up to 64 it is a multiple of 8. Above, there are four lengths between a power of two and the next.
    """
    grain = max(8, 1 << (length - 1).bit_length() >> 3)
    return -(-length // grain) * grain


def padded_size(size: int) -> int:
    """The number of rows, and their length, that a call with one response for each prompt is padded to.

    Such are the later turns of conversations, which grow and end one by one, so that hardly two calls have the same
    size. There are two sizes between a power of two and the next: few compilations save more than the padding costs.
    """
    size = max(size, 8)
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


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
    uniform: jax.Array,
    is_padding: jax.Array,
    temperature: float | jax.Array,
    top_p: float | jax.Array | None,
    *,
    samples: int,
    new_tokens: int,
    stop: tuple[int, ...],
    top_k: int | None,
    greedy: bool,
) -> _Sampled:
    """:param prompts: (prompts, length) tokens, padded on the left.

    :param uniform: numbers from 0 to 1, (new_tokens, prompts x samples). Drawn in bulk, because drawing a few at a
        time costs more than the policy.
    :param is_padding: true for rows that need no response, (prompts,).
    """
    length = prompts.shape[1]
    # The last token is not fed back, so it needs no slot.
    read = policy.jax_prefill(weights, prompts, prompt_valid, slots=length + new_tokens - 1)
    logits, cache = jax.tree.map(lambda array: jnp.repeat(array, samples, axis=0), read)
    start = jnp.repeat(prompt_valid.sum(axis=1), samples)

    def write(index: jax.Array | int, logits: jax.Array, ended: jax.Array) -> _Sampled:
        logits = logits.astype(jnp.float32)
        if greedy:
            token, logprob, log_mass = _likeliest(logits)
        elif top_k is None and top_p is None:
            token, logprob, log_mass = _draw(logits / temperature, uniform[index])
        else:
            token, logprob, log_mass = _draw_truncated(logits / temperature, uniform[index], top_k, top_p)
        return _Sampled(
            jnp.where(ended, PAD, token),
            jnp.where(ended, 0.0, logprob),
            ~ended,
            None if log_mass is None else jnp.where(ended, 0.0, log_mass),
        )

    def goes_on(state: tuple[Any, ...]) -> jax.Array:
        index, _, _, ended, _ = state
        more: jax.Array = (index < new_tokens - 1) & ~ended.all()
        return more

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        index, logits, cache, ended, written = state
        new = write(index, logits, ended)
        written = jax.tree.map(lambda all_, one: all_.at[index].set(one), written, new)
        logits, cache = policy.jax_decode(weights, new.tokens, start + index, length + index, cache)
        return index + 1, logits, cache, ended | jnp.isin(new.tokens, jnp.array(stop, jnp.int32)), written

    ended = jnp.repeat(is_padding, samples)
    shapes = jax.eval_shape(write, 0, logits, ended)
    nothing = jax.tree.map(lambda one: jnp.zeros((new_tokens, *one.shape), one.dtype), shapes)
    _, logits, _, ended, written = jax.lax.while_loop(goes_on, step, (0, logits, cache, ended, nothing))
    last = write(new_tokens - 1, logits, ended)
    whole: _Sampled = jax.tree.map(lambda all_, one: all_.at[-1].set(one).T, written, last)
    return whole


_Choice = tuple[jax.Array, jax.Array, jax.Array | None]
"""The token, its log-probability, and the log of the mass that truncation kept."""


def _likeliest(logits: jax.Array) -> _Choice:
    token = jnp.argmax(logits, axis=-1)
    return token, _pick(logits, token) - jax.nn.logsumexp(logits, axis=-1), None


def _draw(logits: jax.Array, uniform: jax.Array) -> _Choice:
    token, mass = _place(logits, uniform)
    return token, _pick(logits, token) - mass, None


def _draw_truncated(
    logits: jax.Array, uniform: jax.Array, top_k: int | None, top_p: float | jax.Array | None
) -> _Choice:
    """Sample from the `top_k` likeliest tokens, and of those from the fewest whose probabilities reach `top_p`."""
    kept, tokens = (logits, None) if top_k is None else jax.lax.top_k(logits, top_k)
    if top_p is not None:
        kept = jnp.where(_nucleus(kept, top_p), kept, -jnp.inf)
    place, mass = _place(kept, uniform)
    token = place if tokens is None else _pick(tokens, place)
    return token, _pick(kept, place) - mass, mass - jax.nn.logsumexp(logits, axis=-1)


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
