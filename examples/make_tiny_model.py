"""Make a tiny Qwen3 with random weights, its tokenizer, and worked sums to train it on. Needs no internet.

    python examples/make_tiny_model.py            # writes examples/tiny-qwen3
    hookline train examples/sft_hf.toml
    hookline train examples/grpo_hf.toml

The folder has what a model from the hub has, so a run file works with either. The model has two layers of width 128,
0.4 million parameters. In its vocabulary each digit is a token, as in Qwen's own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from hookline.rollout.text import ArithmeticProblems
from hookline.testing.tiny_models import tiny_model, tiny_tokenizer

END = "<|endoftext|>"
SUMS = {"addition-1-2": (1, 2), "addition-2": 2}
"""The digits of the numbers in each lesson."""
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_theta": 1e4,
    "max_position_embeddings": 64,
}


def write_sums(file: Path, part: str, count: int) -> None:
    """Worked sums of both lessons. Those of the part `training` are none of those that evaluations use."""
    rng = np.random.default_rng(0)
    with file.open("w", encoding="utf-8") as out:
        for digits in SUMS.values():
            problems = ArithmeticProblems(digits, "+", part)
            for problem in (problems(rng) for _ in range(count)):
                out.write(json.dumps({"prompt": problem.prompt, "completion": problem.answer}) + "\n")


def main() -> None:
    """`make_tiny_model.py [FOLDER [SEED]]`"""
    arguments = sys.argv[1:]
    folder = Path(arguments[0]) if arguments else Path(__file__).parent / "tiny-qwen3"
    own_text = Path(__file__).read_text(encoding="utf-8")
    tiny_tokenizer(folder, [own_text], vocabulary=320, pad=END, end=END, special=(), single_digits=True)
    tiny_model(folder, "qwen3", seed=int(arguments[1]) if arguments[1:] else 0, spread=3.0, **SIZES)
    write_sums(folder / "sums.jsonl", "training", 8192)
    write_sums(folder / "held_out_sums.jsonl", "held_out", 256)
    print(f"made {folder}")


if __name__ == "__main__":
    main()
