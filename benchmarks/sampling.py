"""Tokens per second of text sampling, beside torch and transformers with the same weights.

    python benchmarks/sampling.py [--json FILE]

All contenders continue the same prompts by as many tokens, sampled at temperature 1, each with a key-value cache: ours
in one scan, a torch loop written by hand, and `generate` of transformers if that is installed. Before they are timed
their greedy continuations are compared. torch has one thread, as in training; JAX takes what it finds. It takes about
two minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from timeit import Timer
from typing import Any, Final, NamedTuple

import jax
import numpy as np
import torch
from measuring import Table, best_of_rounds, describe_machine, json_option, report
from torch.nn import functional

from hookline.policies import TransformerPolicy
from hookline.rollout import SamplingConfig
from hookline.rollout.engines.jax_engine import JaxEngine

OF_TORCH: Final = 1.0
"""How many times the tokens per second of the torch loop we promise."""

OF_TRANSFORMERS: Final = 2.0
"""The same, of `generate`."""


class Case(NamedTuple):
    batch: int
    width: int
    layers: int
    prompt: int
    new_tokens: int


CASES: Final = (
    Case(batch=8, width=128, layers=2, prompt=16, new_tokens=32),
    Case(batch=64, width=128, layers=2, prompt=16, new_tokens=32),
    Case(batch=512, width=128, layers=2, prompt=16, new_tokens=32),
    Case(batch=64, width=128, layers=2, prompt=64, new_tokens=64),
    Case(batch=64, width=256, layers=4, prompt=32, new_tokens=64),
)

Sampler = Callable[[bool], np.ndarray]
"""Samples (or, told so, takes the likeliest tokens), and returns the new tokens."""


def ours(policy: TransformerPolicy, weights: Mapping[str, np.ndarray], prompts: np.ndarray, case: Case) -> Sampler:
    engine, key, tokens = JaxEngine(policy), jax.random.key(0), prompts.tolist()
    engine.update_weights(weights, 0)

    def run(greedy: bool) -> np.ndarray:
        sampling = SamplingConfig(temperature=0.0 if greedy else 1.0)
        # Without a stop token, so that all contenders make as many tokens.
        return engine.generate(tokens, sampling, key, max_new_tokens=case.new_tokens).tokens

    return run


def torch_loop(
    policy: TransformerPolicy, weights: Mapping[str, np.ndarray], prompts: np.ndarray, case: Case
) -> Sampler:
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    tokens = torch.from_numpy(prompts).long()

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (policy.width,), tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def logits_of(
        tokens: torch.Tensor, start: int, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        batch, length = tokens.shape
        end = start + length
        positions = tensors["position_embedding.weight"][start:end]
        x = functional.embedding(tokens, tensors["token_embedding.weight"]) + positions
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
        return functional.linear(norm("norm", x[:, -1]), tensors["token_embedding.weight"])

    @torch.inference_mode()
    def run(greedy: bool) -> np.ndarray:
        room = (case.batch, policy.heads, case.prompt + case.new_tokens, policy.head_width)
        keys, values = ([torch.empty(room) for _ in range(policy.layers)] for _ in range(2))
        logits = logits_of(tokens, 0, keys, values)
        chosen, logprobs = [], []
        for index in range(case.new_tokens):
            all_logprobs = logits.log_softmax(-1)
            token = all_logprobs.argmax(-1, True) if greedy else torch.multinomial(all_logprobs.exp(), 1)
            chosen.append(token)
            logprobs.append(all_logprobs.gather(1, token))
            if index + 1 < case.new_tokens:
                logits = logits_of(token, case.prompt + index, keys, values)
        return torch.cat(chosen, 1).numpy()

    return run


def transformers_generate(
    policy: TransformerPolicy, weights: Mapping[str, np.ndarray], prompts: np.ndarray, case: Case
) -> Sampler:
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
    model: Any = transformers.GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    model.eval()
    missing, unexpected = model.load_state_dict(_as_gpt2(policy, weights), strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    tokens = torch.from_numpy(prompts).long()
    mask = torch.ones_like(tokens)

    @torch.inference_mode()
    def run(greedy: bool) -> np.ndarray:
        sampling: dict[str, Any] = {} if greedy else {"top_k": 0, "temperature": 1.0}
        made = model.generate(
            tokens,
            attention_mask=mask,
            do_sample=not greedy,
            max_new_tokens=case.new_tokens,
            min_new_tokens=case.new_tokens,
            pad_token_id=0,
            **sampling,
        )
        return np.asarray(made[:, case.prompt :])

    return run


def _as_gpt2(policy: TransformerPolicy, weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
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
                array = weights[f"blocks.{block}.{ours}.{kind}"]
                state[f"transformer.h.{block}.{theirs}.{kind}"] = array.T.copy() if array.ndim == 2 else array
    return {name: torch.from_numpy(array) for name, array in state.items()}


def contenders_for(case: Case) -> dict[str, Sampler]:
    context = case.prompt + case.new_tokens
    policy = TransformerPolicy(vocabulary=98, width=case.width, layers=case.layers, heads=4, context=context)
    weights = policy.initial_weights(0)
    prompts = np.random.default_rng(0).integers(2, 98, (case.batch, case.prompt)).astype(np.int32)
    makers = {"hookline": ours, "torch loop": torch_loop}
    if _has_transformers():
        makers["generate"] = transformers_generate
    samplers = {name: make(policy, weights, prompts, case) for name, make in makers.items()}
    expected = samplers["hookline"](True)
    for name, sampler in samplers.items():
        # Two likeliest tokens may lie a rounding apart, and what follows them differs: nearly all must be equal.
        agreement = float((sampler(True) == expected).mean())
        assert agreement > 0.98, f"{name} takes other greedy tokens than hookline: {agreement:.0%} agree"
    return samplers


def _has_transformers() -> bool:
    try:
        import transformers  # noqa: F401
    except ImportError:
        return False
    return True


def text_sampling() -> Table:
    table = Table(
        "Text sampling with a key-value cache, tokens per second",
        f"at least {OF_TORCH:g} x a torch loop written by hand, {OF_TRANSFORMERS:g} x transformers' generate",
        ["batch", "width x layers", "prompt + new", "hookline", "torch loop", "ratio", "generate", "ratio", "held"],
    )
    for case in CASES:
        samplers = contenders_for(case)
        timers = {name: Timer(lambda run=run: run(False)) for name, run in samplers.items()}  # type: ignore[misc]
        seconds = best_of_rounds(timers, rounds=8, round_seconds=0.1)
        rates = {name: case.batch * case.new_tokens / taken for name, taken in seconds.items()}
        of_torch = rates["hookline"] / rates["torch loop"]
        of_generate = rates["hookline"] / rates.get("generate", math.nan)
        held = of_torch >= OF_TORCH and not of_generate < OF_TRANSFORMERS
        table.add(
            [
                str(case.batch),
                f"{case.width} x {case.layers}",
                f"{case.prompt} + {case.new_tokens}",
                f"{rates['hookline']:,.0f}",
                f"{rates['torch loop']:,.0f}",
                f"{of_torch:.2f}",
                f"{rates['generate']:,.0f}" if "generate" in rates else "absent",
                f"{of_generate:.2f}" if "generate" in rates else "-",
                "yes" if held else "NO",
            ],
            **case._asdict(),
            tokens_per_second=rates,
        )
    if not _has_transformers():
        table.remarks.append("transformers is not installed: pip install transformers to compare with its generate")
    return table


if __name__ == "__main__":
    json_file = json_option(__doc__)
    torch.set_num_threads(1)
    report(describe_machine("jax", "torch", "transformers"), [text_sampling()], json_file)
