"""Tokens per second of text sampling, beside torch and transformers with the same weights.

    python benchmarks/sampling.py [--json FILE]

All contenders continue the same prompts by as many tokens, sampled at temperature 1, each with a key-value cache: ours
in one compiled loop, a torch loop written by hand, and `generate` of transformers if that is installed. The models are
our own transformer and a qwen3 read from a Hugging Face folder. Before they are timed, the greedy continuations are
compared. Everything runs on one core (on Linux), with one thread each. It takes about four minutes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from timeit import Timer
from typing import Final

if hasattr(os, "sched_setaffinity"):
    # Before JAX starts its threads. Torch has one thread, as in training, and JAX would otherwise have them all.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import torch
from measuring import Table, best_of_rounds, describe_machine, json_option, report
from sampling_contenders import Case, Sampler, has_transformers, of_a_folder, of_our_transformer

OF_TORCH: Final = 1.0
"""How many times the tokens per second of the torch loop we promise."""

OF_TRANSFORMERS: Final = 2.0
"""The same, of `generate`."""

OWN_CASES: Final = (
    Case(batch=8, width=128, layers=2, prompt=16, new_tokens=32),
    Case(batch=64, width=128, layers=2, prompt=16, new_tokens=32),
    Case(batch=512, width=128, layers=2, prompt=16, new_tokens=32),
    Case(batch=64, width=128, layers=2, prompt=64, new_tokens=64),
    Case(batch=64, width=256, layers=4, prompt=32, new_tokens=64),
)
FOLDER_CASES: Final = OWN_CASES[:4]


def text_sampling(title: str, cases: Sequence[Case], contenders: Callable[[Case], dict[str, Sampler]]) -> Table:
    table = Table(
        f"Text sampling with a key-value cache, {title}, tokens per second",
        f"at least {OF_TORCH:g} x a torch loop written by hand, {OF_TRANSFORMERS:g} x transformers' generate",
        ["batch", "width x layers", "prompt + new", "hookline", "torch loop", "ratio", "generate", "ratio", "held"],
    )
    for case in cases:
        samplers = contenders(case)
        _compare_greedy(samplers)
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
    return table


def _compare_greedy(samplers: dict[str, Sampler]) -> None:
    expected = samplers["hookline"](True)
    for name, sampler in samplers.items():
        # Two likeliest tokens may lie a rounding apart, and what follows them differs: nearly all must be equal.
        agreement = float((sampler(True) == expected).mean())
        assert agreement > 0.98, f"{name} takes other greedy tokens than hookline: {agreement:.0%} agree"


if __name__ == "__main__":
    json_file = json_option(__doc__)
    torch.set_num_threads(1)
    tables = [text_sampling("our transformer", OWN_CASES, of_our_transformer)]
    if has_transformers():
        tables.append(text_sampling("qwen3 from a folder", FOLDER_CASES, of_a_folder))
    else:
        tables[0].remarks.append("transformers is not installed: pip install transformers to compare with its generate")
    report(describe_machine("jax", "torch", "transformers"), tables, json_file)
