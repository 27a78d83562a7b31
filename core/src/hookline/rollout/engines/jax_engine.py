"""`JaxEngine`: generates text with a policy's JAX forward. One compiled loop samples all tokens."""

from __future__ import annotations

import math
import os
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
from hookline.rollout.engines.jax_tokens import draw, draw_nucleus, draw_sorted, likeliest

__all__ = ["JaxEngine", "padded_length", "padded_size"]

PAD: Final = 0

MIN_ROWS: Final = 32
"""The fewest responses that are worth a thread of their own."""

MAX_ROWS: Final = 128
"""About as many responses as are generated at once on a CPU core. The keys and values of more do not fit its caches."""


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
        uniform[:, : len(prompts) * samples] = _uniform(key, max_new_tokens, len(prompts) * samples)
        is_padding = np.arange(rows) >= len(prompts)
        valid[is_padding, -1] = True  # attention needs a token

        def generate(part: slice) -> Generated:
            # Two functions, because the first compiles for no setting of the sampling. The last token is not fed back,
            # so it needs no slot.
            slots = length + max_new_tokens - 1
            read = _prefill(self._policy, self._weights, tokens[part], valid[part], slots=slots)
            sampled = _sample(
                self._policy,
                self._weights,
                *read,
                valid[part],
                uniform[:, part.start * samples : part.stop * samples],
                is_padding[part],
                _padded_stop(stop),
                **_settings(sampling, self.vocabulary),
                samples=samples,
            )
            return Generated(*jax.tree.map(np.array, sampled))

        parts = _parts(rows, samples)
        if len(parts) == 1:
            made = [generate(parts[0])]
        else:
            with ThreadPoolExecutor(_cores()) as threads:
                made = list(threads.map(generate, parts))
        wanted = len(prompts) * samples
        whole: Generated = jax.tree.map(lambda *arrays: np.concatenate(arrays)[:wanted], *made)
        return whole


def _parts(prompts: int, samples: int) -> list[slice]:
    """Parts of equal size, which the cores generate in parallel. On a GPU it is one part.

    XLA computes the small matrix products of a decode step on one core.
    """
    rows = prompts * samples
    wanted = max(min(_cores(), rows // MIN_ROWS), rows // MAX_ROWS) if jax.default_backend() == "cpu" else 1
    count = max((n for n in range(1, wanted + 1) if prompts % n == 0), default=1)
    size = prompts // count
    return [slice(start, start + size) for start in range(0, prompts, size)]


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def _uniform(key: jax.Array, steps: int, rows: int) -> np.ndarray:
    """`jax.random.uniform(key, (steps, rows))`, compiled for few sizes. A number depends on its place alone."""
    size = max(4096, 1 << (steps * rows - 1).bit_length())
    return np.asarray(jax.random.uniform(key, (size,)))[: steps * rows].reshape(steps, rows)


def _padded_stop(stop: Sequence[int]) -> np.ndarray:
    """The stop tokens, with -1 up to a power of two."""
    padded = np.full(max(4, 1 << (len(stop) - 1).bit_length()), -1, np.int32)
    padded[: len(stop)] = stop
    return padded


def _settings(sampling: SamplingConfig, vocabulary: int) -> dict[str, Any]:
    """The arguments of `_sample` that decide how a token is drawn. It compiles for each `greedy` and `candidates`, and
    for a `top_p` that is None.
    """
    greedy = sampling.temperature == 0
    top_k, top_p = (None, None) if greedy else (sampling.top_k, sampling.top_p)
    candidates = None
    if top_k is not None:
        candidates = min(vocabulary, max(16, 1 << (top_k - 1).bit_length()))
        top_p = math.inf if top_p is None else top_p
    return {
        "greedy": greedy,
        "candidates": candidates,
        "temperature": float(sampling.temperature) or 1.0,  # an int would be another type to JAX
        "top_k": top_k,
        "top_p": None if top_p is None else float(top_p),
    }


@partial(jax.jit, static_argnames=("policy", "slots"))
def _prefill(policy: JaxTextPolicy, weights: Mapping[str, Any], prompts: Any, valid: Any, *, slots: int) -> Any:
    """:param prompts: (prompts, length) tokens, padded on the left."""
    return policy.jax_prefill(weights, prompts, valid, slots=slots)


@partial(jax.jit, static_argnames=("policy", "samples", "greedy", "candidates"))
def _sample(
    policy: JaxTextPolicy,
    weights: Mapping[str, Any],
    logits: jax.Array,
    cache: Any,
    prompt_valid: jax.Array,
    uniform: jax.Array,
    is_padding: jax.Array,
    stop: jax.Array,
    *,
    samples: int,
    greedy: bool,
    candidates: int | None,
    temperature: float | jax.Array,
    top_k: int | jax.Array | None,
    top_p: float | jax.Array | None,
) -> _Sampled:
    """:param uniform: numbers from 0 to 1, (new tokens, prompts x samples). Drawn in bulk, because drawing a few at a
        time costs more than the policy.
    :param is_padding: true for rows that need no response, (prompts,).
    :param candidates: a bound of `top_k`; None for none.
    """
    length, new_tokens = prompt_valid.shape[1], len(uniform)
    logits, cache = jax.tree.map(lambda array: jnp.repeat(array, samples, axis=0), (logits, cache))
    start = jnp.repeat(prompt_valid.sum(axis=1), samples)

    def write(index: jax.Array | int, logits: jax.Array, ended: jax.Array) -> _Sampled:
        logits = logits.astype(jnp.float32)
        if greedy:
            token, logprob, log_mass = likeliest(logits)
        elif candidates is not None:
            token, logprob, log_mass = draw_sorted(logits / temperature, uniform[index], candidates, top_k, top_p)
        elif top_p is not None:
            token, logprob, log_mass = draw_nucleus(logits / temperature, uniform[index], top_p)
        else:
            token, logprob, log_mass = draw(logits / temperature, uniform[index])
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
        return index + 1, logits, cache, ended | jnp.isin(new.tokens, stop), written

    ended = jnp.repeat(is_padding, samples)
    shapes = jax.eval_shape(write, 0, logits, ended)
    nothing = jax.tree.map(lambda one: jnp.zeros((new_tokens, *one.shape), one.dtype), shapes)
    _, logits, _, ended, written = jax.lax.while_loop(goes_on, step, (0, logits, cache, ended, nothing))
    last = write(new_tokens - 1, logits, ended)
    whole: _Sampled = jax.tree.map(lambda all_, one: all_.at[-1].set(one).T, written, last)
    return whole
