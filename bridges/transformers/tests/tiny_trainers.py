"""Trainers of transformers and TRL for a language model of two layers, made on the spot: nothing is downloaded.

    python tiny_trainers.py KIND FOLDER --end kill|raise

Trains in FOLDER/trainer, with the run in FOLDER/run, until the process ends after step 5 in the way that is asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

from hookline.rewards import IntegratedRewardConfig
from hookline_hookspecs import TrainerState, hookimpl
from hookline_transformers import HooklineCallback, hookline_reward

torch.set_num_threads(1)  # there is too little to do for more

ROWS = 16


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and two more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def arguments(folder: Path, **more: Any) -> dict[str, Any]:
    """What all trainers are told here: 6 steps, 2 epochs of 4 steps, a log every 2 steps, a checkpoint every 2."""
    return {
        "output_dir": str(folder / "trainer"),
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "logging_steps": 2,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
        **more,
    }


def make_trainer(kind: str, folder: Path, callback: Any = None, **more: Any) -> Trainer:
    """A trainer of this kind; without a callback it is as if Hookline was not there."""
    callbacks = [] if callback is None else [callback]
    make = {"trainer": _plain, "sft": _sft, "dpo": _dpo, "grpo": _grpo}[kind]
    return make(arguments(folder, **more), callbacks)


def _plain(args: dict[str, Any], callbacks: list[Any]) -> Trainer:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(2, 258, (ROWS, 8), generator=generator)
    dataset = Dataset.from_dict({"input_ids": rows.tolist(), "labels": rows.tolist()})
    own = {"train_dataset": dataset, "eval_dataset": dataset.select(range(4))}
    model = args.pop("model", None) or tiny_model()
    return Trainer(model, TrainingArguments(**args), callbacks=callbacks, **own)


def _sft(args: dict[str, Any], callbacks: list[Any]) -> Trainer:
    from trl import SFTConfig, SFTTrainer

    dataset = Dataset.from_dict({"text": [f"{number} and {number} is {2 * number}" for number in range(ROWS)]})
    own = {"train_dataset": dataset, "eval_dataset": dataset.select(range(4)), "processing_class": tiny_tokenizer()}
    return SFTTrainer(tiny_model(), SFTConfig(max_length=32, bf16=False, **args), callbacks=callbacks, **own)


def _dpo(args: dict[str, Any], callbacks: list[Any]) -> Trainer:
    from trl import DPOConfig, DPOTrainer

    rows = {"prompt": [f"{number}+1=" for number in range(ROWS)], "chosen": ["yes"] * ROWS, "rejected": ["no"] * ROWS}
    own = {"train_dataset": Dataset.from_dict(rows), "processing_class": tiny_tokenizer()}
    return DPOTrainer(tiny_model(), tiny_model(), DPOConfig(bf16=False, **args), callbacks=callbacks, **own)


def _grpo(args: dict[str, Any], callbacks: list[Any]) -> Trainer:
    from trl import GRPOConfig, GRPOTrainer

    reward = args.pop("reward", None) or hookline_reward(IntegratedRewardConfig(min_reward_threshold=0.0))
    prompts, references = zip(*((f"{number}+1=", str(number + 1)) for number in range(ROWS)), strict=True)
    rows = {"prompt": prompts, "reference": references, "difficulty": [1] * ROWS}
    # A generation is learned from twice: an epoch has two steps.
    config = GRPOConfig(
        **{"num_generations": 2, "max_completion_length": 6, "num_iterations": 2, "bf16": False, **args}
    )
    dataset = Dataset.from_dict(rows)
    own = {"train_dataset": dataset, "eval_dataset": dataset.select(range(2)), "processing_class": tiny_tokenizer()}
    return GRPOTrainer(tiny_model(), reward, args=config, callbacks=callbacks, **own)


def digest(trainer: Trainer) -> str:
    weights = trainer.model.state_dict()
    return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def losses(trainer: Trainer) -> dict[int, float]:
    return {own["step"]: own["loss"] for own in trainer.state.log_history if "loss" in own}


class Recorded:
    """The numbers in a run's database."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def __getitem__(self, name: str) -> dict[int, float]:
        with closing(sqlite3.connect(self._run_dir / "stats.sqlite")) as database:
            rows = database.execute("SELECT step, value FROM metrics WHERE name = ? ORDER BY step", (name,))
            return dict(rows.fetchall())


class EndAfterStep:
    """Ends training once a step is complete and the next one has begun: by SIGKILL, SIGTERM or an exception."""

    critical = True

    def __init__(self, end: str, step: int = 5) -> None:
        self._end = end
        self._step = step

    @hookimpl
    def pre_training_step(self, state: TrainerState) -> None:
        if state.step == self._step and self._end == "raise":
            raise ZeroDivisionError("on purpose")
        if state.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL if self._end == "kill" else signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--end", choices=("kill", "raise"), required=True)
    told = parser.parse_args()
    callback = HooklineCallback(told.folder / "run", plugins={"ender": EndAfterStep(told.end)})
    # Not within hookline_run: that the run has failed is known all the same when the process ends.
    make_trainer(told.kind, told.folder, callback).train()


if __name__ == "__main__":
    main()
