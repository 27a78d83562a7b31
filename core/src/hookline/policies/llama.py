"""`LlamaPolicy`: the decoders of the Llama family (llama, mistral, qwen2, qwen3), read from a `config.json`.

They have RMS norms, rotary positions, grouped queries and SwiGLU. Qwen2 adds biases to queries, keys and values, Qwen3
a norm to each query and key. What a config asks for beyond that is refused with an error, never left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hookline.policies.protocol import PolicyError

if TYPE_CHECKING:
    import jax
    import numpy as np

    from hookline.policies.llama_jax import Cache

__all__ = ["LlamaPolicy", "RopeScaling", "UnsupportedArchitecture"]

Config = Mapping[str, Any]

FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
"""The values of `model_type`."""


class UnsupportedArchitecture(PolicyError):  # noqa: N818 - it names what was found
    """A model is not of the Llama family, or uses a part of it that the `jax` engine does not have."""

    def __init__(self, reason: str) -> None:
        super().__init__(f'the jax engine cannot run this model: {reason}. Use engine = "transformers"')


@dataclass(frozen=True)
class RopeScaling:
    """Lower frequencies of the rotary positions, for a context longer than the model was first trained with."""

    factor: float
    """The divisor of the frequencies."""
    low_frequency_factor: float = 0.0
    high_frequency_factor: float = 0.0
    original_context: int = 0
    """0 divides every frequency (`linear`). Otherwise (`llama3`) a frequency with fewer than `low_frequency_factor`
    periods in this many tokens is divided, one with more than `high_frequency_factor` is kept, and those between are
    interpolated."""


@dataclass(frozen=True)
class LlamaPolicy:
    """The architecture of a model, as hashable data. The weights have the names of transformers' state dict."""

    vocabulary: int
    context: int
    """The longest sequence, prompt and response together."""
    width: int
    hidden: int
    """The width of the feedforward."""
    layers: int
    heads: int
    kv_heads: int
    """Each key and value head serves `heads / kv_heads` query heads."""
    head_width: int
    norm_epsilon: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    """Whether the output weights are the token embedding."""
    lora_scale: float = 1.0
    """The factor of the LoRA adapters (alpha / r), if the weights have any."""

    @classmethod
    def from_config(cls, config: Config) -> LlamaPolicy:
        """Read a model's config with all of its fields. Raises `UnsupportedArchitecture` with the reason."""
        family = config.get("model_type", "")
        if family not in FAMILIES:
            raise UnsupportedArchitecture(f"model_type {family!r} is none of {', '.join(FAMILIES)}")
        _refuse_unsupported(family, config)
        heads = config["num_attention_heads"]
        theta, scaling = _rope(config)
        attention_bias = family in ("llama", "qwen3") and bool(config.get("attention_bias"))
        return cls(
            vocabulary=config["vocab_size"],
            context=config["max_position_embeddings"],
            width=config["hidden_size"],
            hidden=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_width=config.get("head_dim") or config["hidden_size"] // heads,
            norm_epsilon=config.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            qkv_bias=attention_bias or family == "qwen2",
            output_bias=attention_bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias")),
            qk_norm=family == "qwen3",
            tied=bool(config.get("tie_word_embeddings")),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by name, without LoRA adapters."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        matrices: dict[str, tuple[tuple[int, int], bool]] = {
            "self_attn.q_proj": ((queries, self.width), self.qkv_bias),
            "self_attn.k_proj": ((keys, self.width), self.qkv_bias),
            "self_attn.v_proj": ((keys, self.width), self.qkv_bias),
            "self_attn.o_proj": ((self.width, queries), self.output_bias),
            "mlp.gate_proj": ((self.hidden, self.width), self.mlp_bias),
            "mlp.up_proj": ((self.hidden, self.width), self.mlp_bias),
            "mlp.down_proj": ((self.width, self.hidden), self.mlp_bias),
        }
        norms = {"input_layernorm": self.width, "post_attention_layernorm": self.width}
        if self.qk_norm:
            norms |= {"self_attn.q_norm": self.head_width, "self_attn.k_norm": self.head_width}
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.width)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            for name, (shape, has_bias) in matrices.items():
                shapes[f"{prefix}.{name}.weight"] = shape
                if has_bias:
                    shapes[f"{prefix}.{name}.bias"] = shape[:1]
            shapes |= {f"{prefix}.{name}.weight": (size,) for name, size in norms.items()}
        shapes["model.norm.weight"] = (self.width,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocabulary, self.width)
        return shapes

    def check_adapters(self, names: Iterable[str]) -> None:
        """Raise `UnsupportedArchitecture` if there are adapters, with these names, that the forward does not read."""
        layers = [name.removesuffix(".weight") for name, shape in self.shapes().items() if len(shape) == 2]
        layers.remove("model.embed_tokens")
        unread = set(names) - {f"{layer}.lora_{part}.weight" for layer in layers for part in "AB"}
        if unread:
            raise UnsupportedArchitecture(f"it has adapters where the engine has none, such as {min(unread)}")

    def frequencies(self) -> np.ndarray:
        """The radians per token of each pair of a head."""
        import numpy as np

        frequencies: np.ndarray = self.rope_theta ** -(np.arange(0, self.head_width, 2) / self.head_width)
        scaling = self.rope_scaling
        if scaling is None:
            return frequencies
        if not scaling.original_context:
            return frequencies / scaling.factor
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        periods = scaling.original_context * frequencies / (2 * np.pi)
        kept = np.clip((periods - low) / (high - low), 0.0, 1.0)
        scaled: np.ndarray = kept * frequencies + (1 - kept) * frequencies / scaling.factor
        return scaled

    def jax_prefill(
        self, weights: Mapping[str, jax.Array], tokens: jax.Array, valid: jax.Array, slots: int
    ) -> tuple[jax.Array, Cache]:
        """Read prompts, padded on the left. Returns the next token's logits and a cache with `slots` slots."""
        from hookline.policies.llama_jax import prefill

        return prefill(self, weights, tokens, valid, slots)

    def jax_decode(
        self, weights: Mapping[str, jax.Array], token: jax.Array, position: jax.Array, slot: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """Read one more token of each sequence into `slot`. Returns the next token's logits and the new cache."""
        from hookline.policies.llama_jax import decode

        return decode(self, weights, token, position, slot, cache)


def _refuse_unsupported(family: str, config: Config) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedArchitecture(f"its activation is {activation!r}, not 'silu'")
    window = _sliding_window(family, config)
    if window is not None and window < config["max_position_embeddings"]:
        raise UnsupportedArchitecture(
            f"its sliding window of {window} tokens is shorter than its context of {config['max_position_embeddings']}"
        )
    if config.get("quantization_config"):
        raise UnsupportedArchitecture("its weights are quantized")


def _sliding_window(family: str, config: Config) -> int | None:
    """The window of the layers that have one, if any does."""
    window: int | None = config.get("sliding_window")
    if family == "llama" or window is None:
        return None
    if family == "mistral":
        return window
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28)
        kinds = [
            "sliding_attention" if layer >= first else "full_attention" for layer in range(config["num_hidden_layers"])
        ]
    return window if config.get("use_sliding_window") and "sliding_attention" in kinds else None


def _rope(config: Config) -> tuple[float, RopeScaling | None]:
    """Theta and the scaling. Before transformers 5 they were in `rope_theta` and `rope_scaling`."""
    rope: Config = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        raise UnsupportedArchitecture(
            f"its rotary positions cover a part of each head (partial_rotary_factor {partial})"
        )
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(rope["factor"])
    if kind == "llama3":
        original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
        return theta, RopeScaling(
            rope["factor"],
            rope["low_freq_factor"],
            rope["high_freq_factor"],
            original or config["max_position_embeddings"],
        )
    raise UnsupportedArchitecture(
        f"its rope scaling is {kind!r}, and only 'default', 'linear' and 'llama3' are supported"
    )
