"""`MLXEngine`: generates text with mlx-lm, for Apple silicon. With `mlx[cpu]` it runs on Linux too.

mlx-lm reads the architecture from the model's folder. Prompts of different lengths are padded on the left and generated
in one batch, if all layers have a plain key-value cache. Models with other caches (sliding windows, recurrent layers)
are generated in one batch for each length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_unflatten
from mlx_lm.models.cache import BatchKVCache, KVCache, make_prompt_cache
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.utils import hf_repo_to_path

from hookline.mlx_models import load_mlx_model
from hookline.policies import LoraConfig
from hookline.rollout.config import SamplingConfig
from hookline.rollout.engines.engine import EngineError, EngineRequest, Generated

__all__ = ["MLXEngine"]

PAD: Final = 0

UNLIMITED: Final = 2**31 - 1
"""The context of a model without a longest sequence."""

A, B = ".lora_A.weight", ".lora_B.weight"
"""How the names of a layer's adapters end."""


class MLXEngine:
    """Generates with weights of its own, which `update_weights` copies."""

    def __init__(self, request: EngineRequest) -> None:
        folder = Path(request.policy.path)
        try:
            self._model, config = load_mlx_model(folder if folder.is_dir() else hf_repo_to_path(str(folder)), lazy=True)
        except ValueError as error:
            raise EngineError(
                f'the mlx engine cannot load {request.policy.path!r}: {error} Use engine = "transformers"'
            ) from error
        self._dtype = mx.bfloat16 if request.precision == "bf16" else mx.float32
        self._pads = all(type(cache) is KVCache for cache in make_prompt_cache(self._model))
        self.context: int = config.get("max_position_embeddings") or UNLIMITED
        self.vocabulary: int = config["vocab_size"]
        self.version: int | None = None
        weights = request.weights()
        self._adapted = {name.removesuffix(A): len(weight) for name, weight in weights.items() if name.endswith(A)}
        """The rank of each layer with adapters."""
        if request.policy.lora is not None:
            self._add_adapters(request.policy.lora, [name for name in weights if ".lora_" in name])
        self.update_weights(weights, None)

    def _add_adapters(self, lora: LoraConfig, names: Sequence[str]) -> None:
        layers = {name: layer for name, layer in self._model.named_modules() if isinstance(layer, Linear)}
        unread = [
            name for name in names if not name.endswith((A, B)) or name.removesuffix(A).removesuffix(B) not in layers
        ]
        if unread or lora.unusual:
            what = f"adapters such as {unread[0]}" if unread else f"adapters with the options {lora.unusual}"
            raise EngineError(f'the mlx engine does not support {what}: use engine = "transformers"')
        adapted = [(name, LoRALinear.from_base(layers[name], r, scale=lora.scale)) for name, r in self._adapted.items()]
        self._model.update_modules(tree_unflatten(adapted))
        self._model.eval()

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        own = {name: mx.array(_float32(value)).astype(self._dtype) for name, value in weights.items()}
        adapters = {name: own.pop(name) for name in weights if name.endswith((A, B))}
        if own and hasattr(self._model, "sanitize"):
            # From the names of transformers to those of mlx-lm. By a new model, since it may change the model itself.
            own = type(self._model)(self._model.args).sanitize(own)
        found = {self._name(name): value for name, value in own.items()}
        # mlx-lm multiplies by the transposed matrices.
        found |= {name.replace(A, ".lora_a").replace(B, ".lora_b"): value.T for name, value in adapters.items()}
        self._model.load_weights(list(found.items()), strict=False)
        mx.eval(self._model.parameters())
        self.version = version

    def _name(self, name: str) -> str:
        layer, _, kind = name.rpartition(".")
        return f"{layer}.linear.{kind}" if layer in self._adapted else name

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        key: jax.Array,
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
    ) -> Generated:
        rows = [prompt for prompt in prompts for _ in range(sampling.samples_per_prompt)]
        sampler = _Sampler(sampling, key)
        shape = (len(rows), max_new_tokens)
        tokens, valid = np.full(shape, PAD, np.int32), np.zeros(shape, bool)
        logprobs, log_mass = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for batch in self._batches(rows):
            caches, logits = self._prefill([rows[row] for row in batch])
            going = np.ones(len(batch), bool)
            for step in range(max_new_tokens):
                chosen = sampler(logits)
                mx.eval(chosen)
                own = [np.where(going, np.array(array), 0) for array in chosen]
                tokens[batch, step], logprobs[batch, step], log_mass[batch, step] = own
                valid[batch, step] = going
                going &= ~np.isin(tokens[batch, step], stop)
                if step + 1 == max_new_tokens or not going.any():
                    break
                logits = self._model(chosen[0][:, None], cache=caches)[:, -1]
        return Generated(tokens, logprobs, valid, log_mass if sampler.is_truncated else None)

    def _batches(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """The indices of rows that are generated together."""
        if self._pads:
            return [list(range(len(rows)))]
        lengths = sorted({len(row) for row in rows})
        return [[index for index, row in enumerate(rows) if len(row) == length] for length in lengths]

    def _prefill(self, rows: Sequence[Sequence[int]]) -> tuple[list[Any], mx.array]:
        longest = max(map(len, rows))
        padding = [longest - len(row) for row in rows]
        caches = make_prompt_cache(self._model)
        if self._pads:
            caches = [BatchKVCache(padding) for _ in caches]
        inputs = mx.array([[PAD] * missing + list(row) for missing, row in zip(padding, rows, strict=True)])
        return caches, self._model(inputs, cache=caches)[:, -1]


class _Sampler:
    """Samples a token for each row of logits."""

    def __init__(self, sampling: SamplingConfig, key: jax.Array) -> None:
        self._sampling = sampling
        self._key = mx.array(np.asarray(jax.random.key_data(key)).ravel()[-2:])
        self.is_truncated = sampling.temperature > 0 and (sampling.top_k is not None or sampling.top_p is not None)

    def __call__(self, logits: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Tokens, their log-probabilities, and the log of the mass that truncation kept, (rows,) each."""
        logits = logits.astype(mx.float32) / (self._sampling.temperature or 1.0)
        kept = self._truncated(logits) if self.is_truncated else logits
        noise = mx.zeros_like(kept)
        if self._sampling.temperature:
            self._key, key = mx.random.split(self._key)
            noise = mx.random.gumbel(kept.shape, key=key)
        token = mx.argmax(kept + noise, axis=-1)
        mass = mx.logsumexp(kept, axis=-1)
        logprob = mx.take_along_axis(kept, token[:, None], axis=-1)[:, 0] - mass
        return token, logprob, mass - mx.logsumexp(logits, axis=-1)

    def _truncated(self, logits: mx.array) -> mx.array:
        """The logits of the `top_k` likeliest tokens, and of those the fewest whose probabilities reach `top_p`."""
        tokens = mx.argsort(-logits, axis=-1)[:, : self._sampling.top_k]
        kept = mx.take_along_axis(logits, tokens, axis=-1)
        if self._sampling.top_p is not None:
            shares = mx.softmax(kept, axis=-1)
            # The likeliest token is always kept, and so is the one that reaches `top_p`.
            kept = mx.where(mx.cumsum(shares, axis=-1) - shares < self._sampling.top_p, kept, -mx.inf)
        return mx.put_along_axis(mx.full(logits.shape, -mx.inf), tokens, kept, axis=-1)


def _float32(value: Any) -> np.ndarray:
    """A weight of any framework. bfloat16, which NumPy does not have, fits into float32."""
    value = value.detach().float().cpu() if hasattr(value, "detach") else value
    return np.asarray(value, np.float32)
