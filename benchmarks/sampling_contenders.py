"""The contenders of `sampling.py`: our engine, a torch loop written by hand, and `generate` of transformers.

All have the weights of one model: a `TransformerPolicy`, which is a GPT-2 to transformers, or a qwen3 from a folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hookline.policies import TransformerPolicy
from hookline.policies.llama import LlamaPolicy
from hookline.policies.protocol import JaxTextPolicy
from hookline.rollout import SamplingConfig
from hookline.rollout.engines.jax_engine import JaxEngine

__all__ = ["Case", "Sampler", "has_transformers", "of_a_folder", "of_our_transformer"]


class Case(NamedTuple):
    batch: int
    width: int
    layers: int
    prompt: int
    new_tokens: int


Sampler = Callable[[bool], np.ndarray]
"""Samples (or, told so, takes the likeliest tokens), and returns the new tokens."""

Forward = Callable[[Tensor, int, list[Tensor], list[Tensor]], Tensor]
"""The next token's logits after (batch, length) tokens from a position on, which it adds to the keys and values."""


def of_our_transformer(case: Case) -> dict[str, Sampler]:
    context = case.prompt + case.new_tokens
    policy = TransformerPolicy(vocabulary=98, width=case.width, layers=case.layers, heads=4, context=context)
    weights = {name: torch.from_numpy(array) for name, array in policy.initial_weights(0).items()}
    prompts = torch.from_numpy(np.random.default_rng(0).integers(2, 98, (case.batch, case.prompt)))
    samplers = {
        "hookline": _engine(policy, weights, prompts, case),
        "torch loop": _torch_loop(_forward_of_ours(policy, weights), policy.heads, policy.head_width, prompts, case),
    }
    if has_transformers():
        samplers["generate"] = _generate(_gpt2(policy, weights), prompts, case)
    return samplers


def of_a_folder(case: Case) -> dict[str, Sampler]:
    """With a tiny random qwen3, made on the spot."""
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=1024,
        hidden_size=case.width,
        intermediate_size=3 * case.width,
        num_hidden_layers=case.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=case.width // 4,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        max_position_embeddings=case.prompt + case.new_tokens,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        auto.from_config(config).save_pretrained(folder)
        policy = LlamaPolicy.from_config(json.loads(Path(folder, "config.json").read_text("utf-8")))
        model = auto.from_pretrained(folder).eval()
    weights = {name: tensor for name, tensor in model.state_dict().items() if name in policy.shapes()}
    prompts = torch.from_numpy(np.random.default_rng(0).integers(1024, size=(case.batch, case.prompt)))
    return {
        "hookline": _engine(policy, weights, prompts, case),
        "torch loop": _torch_loop(
            _forward_of_qwen3(policy, weights), policy.kv_heads, policy.head_width, prompts, case
        ),
        "generate": _generate(model, prompts, case),
    }


def has_transformers() -> bool:
    try:
        import transformers  # noqa: F401
    except ImportError:
        return False
    return True


def _engine(policy: JaxTextPolicy, weights: Mapping[str, Tensor], prompts: Tensor, case: Case) -> Sampler:
    engine, key, tokens = JaxEngine(policy, weights), jax.random.key(0), prompts.tolist()

    def run(greedy: bool) -> np.ndarray:
        sampling = SamplingConfig(temperature=0.0 if greedy else 1.0)
        # Without a stop token, so that all contenders make as many tokens.
        return engine.generate(tokens, sampling, key, max_new_tokens=case.new_tokens).tokens

    return run


def _torch_loop(forward: Forward, heads: int, head_width: int, prompts: Tensor, case: Case) -> Sampler:
    room = (case.batch, heads, case.prompt + case.new_tokens, head_width)

    @torch.inference_mode()
    def run(greedy: bool) -> np.ndarray:
        keys, values = ([torch.empty(room) for _ in range(case.layers)] for _ in range(2))
        logits = forward(prompts, 0, keys, values)
        chosen, logprobs = [], []
        for index in range(case.new_tokens):
            all_logprobs = logits.log_softmax(-1)
            token = all_logprobs.argmax(-1, True) if greedy else torch.multinomial(all_logprobs.exp(), 1)
            chosen.append(token)
            logprobs.append(all_logprobs.gather(1, token))
            if index + 1 < case.new_tokens:
                logits = forward(token, case.prompt + index, keys, values)
        return torch.cat(chosen, 1).numpy()

    return run


def _forward_of_ours(policy: TransformerPolicy, weights: Mapping[str, Tensor]) -> Forward:
    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (policy.width,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def forward(tokens: Tensor, start: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        batch, length = tokens.shape
        end = start + length
        positions = weights["position_embedding.weight"][start:end]
        x = functional.embedding(tokens, weights["token_embedding.weight"]) + positions
        for block in range(policy.layers):
            name = f"blocks.{block}"
            qkv = linear(f"{name}.attention.qkv", norm(f"{name}.norm1", x))
            q, k, v = qkv.view(batch, length, 3, policy.heads, policy.head_width).permute(2, 0, 3, 1, 4)
            keys[block][:, :, start:end], values[block][:, :, start:end] = k, v
            mixed = functional.scaled_dot_product_attention(
                q, keys[block][:, :, :end], values[block][:, :, :end], is_causal=length > 1
            )
            x = x + linear(f"{name}.attention.out", mixed.transpose(1, 2).reshape(batch, length, policy.width))
            hidden = functional.gelu(linear(f"{name}.mlp.up", norm(f"{name}.norm2", x)), approximate="tanh")
            x = x + linear(f"{name}.mlp.down", hidden)
        return functional.linear(norm("norm", x[:, -1]), weights["token_embedding.weight"])

    return forward


def _forward_of_qwen3(policy: LlamaPolicy, weights: Mapping[str, Tensor]) -> Forward:
    half = policy.head_width // 2
    angles = torch.arange(policy.context)[:, None] * policy.rope_theta ** -(torch.arange(half) / half)
    cosine, sine = angles.cos(), angles.sin()

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"])

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], policy.norm_epsilon)

    def heads(name: str, x: Tensor) -> Tensor:
        return linear(name, x).view(*x.shape[:-1], -1, policy.head_width)

    def rotated(x: Tensor, start: int) -> Tensor:
        first, second = x.transpose(1, 2).chunk(2, -1)
        cos, sin = cosine[start : start + x.shape[1]], sine[start : start + x.shape[1]]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(tokens: Tensor, start: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        end = start + tokens.shape[1]
        x = functional.embedding(tokens, weights["model.embed_tokens.weight"])
        for layer in range(policy.layers):
            name, attention = f"model.layers.{layer}", f"model.layers.{layer}.self_attn"
            y = norm(f"{name}.input_layernorm", x)
            q = rotated(norm(f"{attention}.q_norm", heads(f"{attention}.q_proj", y)), start)
            keys[layer][:, :, start:end] = rotated(norm(f"{attention}.k_norm", heads(f"{attention}.k_proj", y)), start)
            values[layer][:, :, start:end] = heads(f"{attention}.v_proj", y).transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(
                q, keys[layer][:, :, :end], values[layer][:, :, :end], is_causal=start == 0, enable_gqa=True
            )
            x = x + linear(f"{attention}.o_proj", mixed.transpose(1, 2).flatten(2))
            y = norm(f"{name}.post_attention_layernorm", x)
            gated = functional.silu(linear(f"{name}.mlp.gate_proj", y)) * linear(f"{name}.mlp.up_proj", y)
            x = x + linear(f"{name}.mlp.down_proj", gated)
        return functional.linear(norm("model.norm", x[:, -1]), weights["model.embed_tokens.weight"])

    return forward


def _generate(model: Any, prompts: Tensor, case: Case) -> Sampler:
    mask = torch.ones_like(prompts)

    @torch.inference_mode()
    def run(greedy: bool) -> np.ndarray:
        sampling: dict[str, Any] = {} if greedy else {"top_k": 0, "temperature": 1.0}
        made = model.generate(
            prompts,
            attention_mask=mask,
            do_sample=not greedy,
            max_new_tokens=case.new_tokens,
            min_new_tokens=case.new_tokens,
            pad_token_id=0,
            **sampling,
        )
        return np.asarray(made[:, case.prompt :])

    return run


def _gpt2(policy: TransformerPolicy, weights: Mapping[str, Tensor]) -> Any:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=policy.vocabulary,
        n_positions=policy.context,
        n_embd=policy.width,
        n_layer=policy.layers,
        n_head=policy.heads,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = transformers.GPT2LMHeadModel(config)
    model.eval()
    missing, unexpected = model.load_state_dict(_as_gpt2(policy, weights), strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def _as_gpt2(policy: TransformerPolicy, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by GPT-2's names; its matrices are inputs x outputs."""
    names = {"norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj"}
    names |= {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    state = {
        "transformer.wte.weight": weights["token_embedding.weight"],
        "transformer.wpe.weight": weights["position_embedding.weight"],
        "transformer.ln_f.weight": weights["norm.weight"],
        "transformer.ln_f.bias": weights["norm.bias"],
    }
    for block in range(policy.layers):
        for ours, theirs in names.items():
            for kind in ("weight", "bias"):
                tensor = weights[f"blocks.{block}.{ours}.{kind}"]
                state[f"transformer.h.{block}.{theirs}.{kind}"] = tensor.T.contiguous() if tensor.ndim == 2 else tensor
    return state
