"""Random Hugging Face models of a few thousand weights, with a byte-level BPE tokenizer trained on the spot.

For tests, examples and benchmarks that need a model's folder and no internet. They need `hookline[hf]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

__all__ = ["CHAT_TEMPLATE", "FAMILIES", "TEXTS", "tiny_model", "tiny_tokenizer"]

TEXTS = ("12+34=46 7+5=12 80+19=99 ", "A plugin listens to the events of a run. ", "Prompt: sum of two numbers? ")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "rope_theta": 3e5},
    "mistral": {"num_key_value_heads": 1, "head_dim": 24, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 24, "rope_theta": 5e5, "tie_word_embeddings": True},
    "gpt2": {},
}
"""The config of each family, besides the sizes. They have unusual head sizes and thetas on purpose."""


def tiny_tokenizer(
    folder: Path,
    texts: Iterable[str] = TEXTS,
    *,
    vocabulary: int = 300,
    pad: str = "<|pad|>",
    end: str = "<|end|>",
    special: Iterable[str] = ("<|user|>", "<|assistant|>"),
    single_digits: bool = False,
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on the texts and save it in the folder. Its first tokens are `pad`, `end` and `special`.

    :param single_digits: whether each digit is a token, as in Qwen's tokenizer.
    """
    bpe = Tokenizer(models.BPE())
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes]) if single_digits else by_bytes
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(dict.fromkeys([pad, end, *special])),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, pad_token=pad)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return tokenizer


def tiny_model(
    folder: Path,
    family: str = "qwen3",
    *,
    labels: int | None = None,
    seed: int = 0,
    spread: float = 4.0,
    **changes: Any,
) -> Path:
    """Save a random model of a family in the folder, with a tokenizer if it has none. Returns the folder.

    :param family: one of `FAMILIES`, or another whose config has fields of the same names as llama's.
    :param labels: make a sequence classifier with so many labels, in place of a causal language model.
    :param spread: what the initial weights are multiplied by. With the usual ones, all tokens are about equally likely.
    :param changes: further fields of the model's config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        tiny_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    sizes = (
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
        if family == "gpt2"
        else {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
        }
    )
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    fields = {"vocab_size": len(tokenizer), **sizes, **special, **FAMILIES.get(family, {}), **changes}
    auto: Any = AutoModelForCausalLM
    if labels is not None:
        auto, fields["num_labels"] = AutoModelForSequenceClassification, labels
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(AutoConfig.for_model(family, **fields))
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.data.mul_(spread)
        elif "bias" in name and spread != 1:  # the usual ones are zero
            weight.data.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    return folder
