"""Make a tiny Qwen3 with random weights, its tokenizer, and worked sums to train it on. Needs no internet.

    python examples/make_tiny_model.py            # writes examples/tiny-qwen3
    hookline train examples/sft_hf.toml
    hookline train examples/grpo_hf.toml

The folder has what a model from the hub has, so a run file works with either.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

from hookline.rollout.text import ArithmeticProblems

END = "<|endoftext|>"
SUMS = {"addition-1-2": (1, 2), "addition-2": 2}
"""The digits of the numbers in each lesson."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in which each digit is a token, as in Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Two layers of width 128: 0.4 million parameters."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    set_seed(seed)
    return Qwen3ForCausalLM(config)


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
    tokenizer = make_tokenizer()
    make_model(tokenizer, seed=int(arguments[1]) if arguments[1:] else 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_sums(folder / "sums.jsonl", "training", 8192)
    write_sums(folder / "held_out_sums.jsonl", "held_out", 256)
    print(f"made {folder}")


if __name__ == "__main__":
    main()
