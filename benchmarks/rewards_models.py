"""The models of the reward processor beside a torch loop of the same model, for `rewards.py`.

A random qwen3 of two layers and width 128 reads episodes of 8 to 62 words: once as a perplexity model, once with the
head of a reward model. Without a GPU, NumPy reads them; MLX on the CPU is measured beside it. The torch loop is
transformers' forward in float32, in padded batches, without gradients: in the order of the episodes, and by length in
batches of 8. Every contender tokenizes the texts itself. Texts are new in each round, since we would remember old ones.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring import Table

from hookline.rewards import RewardConfig
from hookline.rewards.models import PerplexityModel, RewardModel, ScoringModel
from hookline_hookspecs import Episode

BATCHES: Final = (8, 32, 128)
ROUNDS: Final = 4
BY_LENGTH: Final = 8
"""The batch size of the loop that sorts its episodes by length."""
PROMISED: Final = 32
"""The smallest batch of the promise."""

KINDS: Final[dict[str, type[ScoringModel]]] = {"perplexity_model": PerplexityModel, "reward_model": RewardModel}

Score = Callable[[Sequence[Episode]], Any]


def model_tables(vocabulary: Sequence[str]) -> list[Table]:
    """One table for each kind of model.

    :param vocabulary: the words that episodes are made of.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    tables = []
    for option, labels in {"perplexity_model": None, "reward_model": 1}.items():
        table = Table(
            f"RewardConfig({option}=...), qwen3 2 x 128, episodes per second of processor time, one core",
            f"ahead of the torch loop at batch {PROMISED} and up",
            ["batch", "hookline", "MLX on the CPU", "torch loop", "ratio", "torch loop by length", "ratio", "held"],
        )
        with tempfile.TemporaryDirectory() as folder:
            _make_model(Path(folder), labels)
            for batch in BATCHES:
                _measure(table, folder, option, batch, vocabulary)
            table.remarks.append(f"hookline scores with {_library(option, folder)}, ratios are to the loops")
        table.remarks.append(f"MLX on the CPU multiplies matrices with {_blas_of_mlx()}")
        tables.append(table)
    return tables


def _make_model(folder: Path, labels: int | None) -> None:
    from hookline.testing.tiny_models import tiny_model, tiny_tokenizer

    readme = Path(__file__).parent.parent / "README.md"
    tiny_tokenizer(folder, readme.read_text(encoding="utf-8").splitlines(), vocabulary=512)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "head_dim": 32, "max_position_embeddings": 512}
    tiny_model(folder, "qwen3", labels=labels, spread=1.0, **sizes)


def _measure(table: Table, folder: str, option: str, batch: int, vocabulary: Sequence[str]) -> None:
    kind = KINDS[option]
    loop = _torch_perplexity(folder) if option == "perplexity_model" else _torch_rewards(folder)
    contenders: dict[str, Score] = {
        "hookline": kind(option, folder, RewardConfig(batch_size=batch)).scores,
        "MLX on the CPU": kind(option, folder, RewardConfig(batch_size=batch, mlx_device="cpu")).scores,
        "torch loop": lambda episodes: loop(episodes, batch),
        "torch loop by length": lambda episodes: _by_length(loop, episodes),
    }
    rng = random.Random(batch)
    for _ in range(2):  # a round to compile, too
        episodes = _episodes(rng, batch, vocabulary)
        found = [score(episodes) for score in contenders.values()]
        assert all(np.abs(other - found[0]).max() < 1e-4 for other in found[1:])
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(ROUNDS):
        episodes = _episodes(rng, batch, vocabulary)
        for name, score in contenders.items():
            start = time.process_time()
            score(episodes)
            best[name] = min(best[name], (time.process_time() - start) / batch)
    ratios = {name: best[name] / best["hookline"] for name in contenders}
    table.add(
        [
            str(batch),
            f"{1 / best['hookline']:,.0f}",
            f"{1 / best['MLX on the CPU']:,.0f}",
            f"{1 / best['torch loop']:,.0f}",
            f"{ratios['torch loop']:.2f}",
            f"{1 / best['torch loop by length']:,.0f}",
            f"{ratios['torch loop by length']:.2f}",
            "-" if batch < PROMISED else "yes" if ratios["torch loop"] >= 1 else "NO",
        ],
        batch=batch,
        episodes_per_second={name: 1 / seconds for name, seconds in best.items()},
    )


def _episodes(rng: random.Random, count: int, vocabulary: Sequence[str]) -> list[Episode]:
    numbers = (rng.randrange(10**9) for _ in range(count))
    return [
        Episode(
            f"Explain how machine number {number} works.",
            " ".join(rng.choice(vocabulary) for _ in range(rng.randrange(8, 63))) + ".",
        )
        for number in numbers
    ]


Loop = Callable[[Sequence[Episode], int], Any]
"""Scores episodes in batches of a size."""


def _by_length(loop: Loop, episodes: Sequence[Episode]) -> Any:
    lengths = [len(episode.prompt) + len(episode.response) for episode in episodes]
    order = np.argsort(lengths, kind="stable")
    scores = np.empty(len(episodes))
    scores[order] = loop([episodes[index] for index in order], BY_LENGTH)
    return scores


def _torch_perplexity(folder: str) -> Loop:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(episodes: Sequence[Episode], size: int) -> Any:
        prompts = tokenizer([episode.prompt for episode in episodes])["input_ids"]
        responses = tokenizer([episode.response for episode in episodes], add_special_tokens=False)["input_ids"]
        scores = []
        for first in range(0, len(episodes), size):
            pairs = list(zip(prompts[first : first + size], responses[first : first + size], strict=True))
            tokens, mask = _padded([before + after for before, after in pairs])
            scored = mask.clone()
            for row, (before, _) in zip(scored, pairs, strict=True):
                row[: len(before)] = 0
            logprobs = model(tokens, attention_mask=mask).logits[:, :-1].log_softmax(-1)
            chosen = logprobs.gather(-1, tokens[:, 1:, None])[..., 0]
            scores.append((chosen * scored[:, 1:]).sum(-1) / scored[:, 1:].sum(-1))
        return torch.cat(scores).numpy()

    return torch.no_grad()(score)


def _torch_rewards(folder: str) -> Loop:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(episodes: Sequence[Episode], size: int) -> Any:
        prompts = tokenizer([episode.prompt for episode in episodes])["input_ids"]
        responses = tokenizer([episode.response for episode in episodes], add_special_tokens=False)["input_ids"]
        rows = [[*before, *after, tokenizer.eos_token_id] for before, after in zip(prompts, responses, strict=True)]
        scores = []
        for first in range(0, len(rows), size):
            tokens, mask = _padded(rows[first : first + size])
            scores.append(model(tokens, attention_mask=mask).logits[:, 0])
        return torch.cat(scores).numpy()

    return torch.no_grad()(score)


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Tokens and attention mask, padded on the right. Token 0 is the padding."""
    import torch

    tokens = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for own, own_mask, row in zip(tokens, mask, rows, strict=True):
        own[: len(row)] = torch.tensor(row)
        own_mask[: len(row)] = 1
    return tokens, mask


def _library(option: str, folder: str) -> str:
    """The library that scores by default."""
    scorer = KINDS[option](option, folder, RewardConfig())._scorer
    return "NumPy" if type(scorer).__module__.endswith("numpy") else "MLX"


def _blas_of_mlx() -> str:
    """The library that MLX's matrix products come from. On Linux, one that is preloaded goes before MLX's own."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return "the system's own library"
    names = {Path(line.split()[-1]).name for line in maps.read_text().splitlines() if ".so" in line}
    preloaded = sorted(name for name in names if name.startswith(("libopenblas", "libmkl_rt", "libblis")))
    return preloaded[0] if preloaded else "the reference BLAS of its wheel, which is not made for speed"
