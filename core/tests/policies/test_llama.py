"""The JAX and NumPy forwards of the Llama family give the log-probabilities of transformers' torch forward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.policies import to_jax
from hookline.policies.llama import LlamaPolicy, RopeScaling, UnsupportedArchitecture
from hookline.policies.llama_numpy import hidden_states

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-4
LENGTH, PROMPT = 20, 9

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 7e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.5}


def config_for(family: str, **changes: Any) -> Any:
    """A tiny config with a head width that is not width / heads."""
    small = {
        "vocab_size": 41, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64, "sliding_window": None,
    }  # fmt: skip
    if family == "llama":
        del small["sliding_window"]
    return transformers.AutoConfig.for_model(family, **{**small, **changes})


def random_model(config: Any, seed: int = 0) -> Any:
    """A model whose weights are nowhere zero or one, so that every one of them counts."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return model


def torch_logprobs(model: Any, tokens: np.ndarray, valid: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens), attention_mask=torch.from_numpy(valid).long()).logits
    return logits.float().log_softmax(-1).numpy()[:, PROMPT - 1 :]


@partial(jax.jit, static_argnums=0)
def jax_logprobs(
    policy: LlamaPolicy, weights: Mapping[str, jax.Array], tokens: jax.Array, valid: jax.Array
) -> jax.Array:
    """Those of the tokens after the prompt, which are read one at a time as an engine would."""
    logits, cache = policy.jax_prefill(weights, tokens[:, :PROMPT], valid[:, :PROMPT], slots=LENGTH)
    start = valid[:, :PROMPT].sum(axis=1)

    def step(cache: Any, slot: jax.Array) -> tuple[Any, jax.Array]:
        logits, cache = policy.jax_decode(weights, tokens[:, slot], start + slot - PROMPT, slot, cache)
        return cache, logits

    after = jax.lax.scan(step, cache, jnp.arange(PROMPT, LENGTH))[1]
    return jax.nn.log_softmax(jnp.concatenate([logits[None], after]).swapaxes(0, 1))


def numpy_logprobs(
    policy: LlamaPolicy, weights: Mapping[str, jax.Array], tokens: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """Those of the tokens after the prompt. Texts have different lengths, as the valid tokens of the rows do."""
    arrays = {name: np.asarray(array) for name, array in weights.items()}
    texts = [row[own] for row, own in zip(tokens, valid, strict=True)]
    hidden = hidden_states(policy, arrays, texts)
    logits = hidden @ arrays["model.embed_tokens.weight" if policy.tied else "lm_head.weight"].T
    ends = np.cumsum([len(text) for text in texts])
    after = np.stack([logits[end - LENGTH + PROMPT - 1 : end] for end in ends])
    return np.asarray(jax.nn.log_softmax(after))


def difference(model: Any, policy: LlamaPolicy, weights: Mapping[str, jax.Array], seed: int = 0) -> float:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(policy.vocabulary, size=(4, LENGTH))
    valid = np.arange(LENGTH) >= generator.integers(PROMPT, size=(4, 1))
    theirs = torch_logprobs(model, tokens, valid)
    assert np.ptp(theirs) > 2, "the model prefers some tokens to others"
    ours = [jax_logprobs(policy, weights, tokens, valid)]
    if not any("lora" in name for name in weights):
        ours.append(numpy_logprobs(policy, weights, tokens, valid))
    return max(float(np.abs(np.asarray(own) - theirs).max()) for own in ours)


def policy_of(model: Any) -> LlamaPolicy:
    return LlamaPolicy.from_config(json.loads(model.config.to_json_string()))


def weights_of(model: Any) -> dict[str, jax.Array]:
    return to_jax({name: tensor for name, tensor in model.state_dict().items() if name in policy_of(model).shapes()})


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 1, "head_dim": 22}),
        ("mistral", {"rope_parameters": LINEAR, "num_key_value_heads": 4, "rms_norm_eps": 0.1}),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 33.0}, "tie_word_embeddings": True}),
        ("qwen3", {}),
    ],
    ids=["llama-llama3", "mistral-linear", "qwen2-tied", "qwen3-plain"],
)
def test_logprobs_are_those_of_transformers(family: str, changes: dict[str, Any]) -> None:
    model = random_model(config_for(family, **changes))
    assert difference(model, policy_of(model), weights_of(model)) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "biases"),
    [("llama", {"attention_bias": True, "mlp_bias": True}), ("qwen3", {"attention_bias": True})],
)
def test_optional_biases_are_added(family: str, biases: dict[str, bool]) -> None:
    model = random_model(config_for(family, **biases))
    assert difference(model, policy_of(model), weights_of(model)) <= TOLERANCE


ropes = st.one_of(
    st.fixed_dictionaries({"rope_type": st.just("default"), "rope_theta": st.floats(2.0, 1e7)}),
    st.fixed_dictionaries(
        {"rope_type": st.just("linear"), "rope_theta": st.floats(2.0, 1e7), "factor": st.floats(1.0, 16.0)}
    ),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "rope_theta": st.floats(2.0, 1e7),
            "factor": st.floats(1.0, 32.0),
            "low_freq_factor": st.floats(0.5, 2.0),
            "high_freq_factor": st.floats(2.5, 8.0),
            "original_max_position_embeddings": st.integers(8, 63),
        }
    ),
)


@settings(max_examples=6)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    rope=ropes,
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_dim=st.integers(1, 20).map(lambda half: 2 * half),
    layers=st.integers(1, 3),
    tied=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_logprobs_are_those_of_transformers_for_any_sizes(
    family: str, rope: dict[str, Any], kv_heads: int, group: int, head_dim: int, layers: int, tied: bool, seed: int
) -> None:
    config = config_for(
        family,
        rope_parameters=rope,
        hidden_size=6 * kv_heads * group,
        num_attention_heads=kv_heads * group,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        num_hidden_layers=layers,
        tie_word_embeddings=tied,
    )
    model = random_model(config, seed)
    assert difference(model, policy_of(model), weights_of(model), seed) <= TOLERANCE


def test_adapters_are_added_with_their_scale() -> None:
    model = random_model(config_for("qwen3"))
    generator = np.random.default_rng(0)
    weights, scale = weights_of(model), 0.7
    layers = [name.removesuffix(".weight") for name, shape in policy_of(model).shapes().items() if len(shape) == 2]
    for layer in layers:
        if layer == "model.embed_tokens":
            continue
        module = model.get_submodule(layer)
        outputs, inputs = module.weight.shape
        a = generator.normal(0, 0.2, (3, inputs)).astype(np.float32)
        b = generator.normal(0, 0.2, (outputs, 3)).astype(np.float32)
        weights |= to_jax({f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b})
        with torch.no_grad():
            module.weight += scale * torch.from_numpy(b @ a)
    assert difference(model, replace(policy_of(model), lora_scale=scale), weights) <= TOLERANCE


def test_bf16_stays_as_close_to_fp32_as_torch_does() -> None:
    model = random_model(config_for("qwen3"))
    policy, weights = policy_of(model), weights_of(model)
    generator = np.random.default_rng(0)
    tokens, valid = generator.integers(41, size=(16, LENGTH)), np.ones((16, LENGTH), bool)
    exact = torch_logprobs(model, tokens, valid)
    ours = jax_logprobs(policy, {name: array.astype(jnp.bfloat16) for name, array in weights.items()}, tokens, valid)
    assert ours.dtype == jnp.float32
    theirs = torch_logprobs(model.to(torch.bfloat16), tokens, valid)
    own_error, torch_error = (float(np.abs(np.asarray(logprobs) - exact).mean()) for logprobs in (ours, theirs))
    assert 0 < own_error <= 1.2 * torch_error


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_shapes_are_those_of_the_model(family: str, tied: bool) -> None:
    model = random_model(config_for(family, tie_word_embeddings=tied))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if tied:
        del expected["lm_head.weight"]
    assert policy_of(model).shapes() == expected


BASE = {
    "model_type": "qwen3", "vocab_size": 41, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64,
}  # fmt: skip


def test_rope_is_read_from_the_layouts_before_and_after_transformers_5() -> None:
    old = LlamaPolicy.from_config({**BASE, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = LlamaPolicy.from_config(
        {**BASE, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    )
    assert old == new
    assert (new.rope_theta, new.rope_scaling) == (5e5, RopeScaling(2.0))
    plain = LlamaPolicy.from_config({**BASE, "rope_theta": 123.0, "rope_scaling": None})
    assert (plain.rope_theta, plain.rope_scaling) == (123.0, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is none of llama, mistral, qwen2, qwen3"),
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe' is none of"),
        ({"hidden_act": "gelu"}, "its activation is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "its rope scaling is 'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "its rope scaling is 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "its rope scaling is 'longrope'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (
            {"model_type": "mistral", "sliding_window": 16},
            "its sliding window of 16 tokens is shorter than its context",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            "its sliding window of 16 tokens is shorter than its context of 64",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "its weights are quantized"),
    ],
)
def test_what_is_not_supported_is_refused_and_the_engine_that_can_is_named(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        LlamaPolicy.from_config({**BASE, **changes})
    assert reason in str(caught.value)
    assert 'engine = "transformers"' in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 64},
        {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        {"partial_rotary_factor": 1.0},
    ],
)
def test_a_sliding_window_without_effect_is_no_reason_to_refuse(changes: dict[str, Any]) -> None:
    assert LlamaPolicy.from_config({**BASE, **changes}).context == 64
