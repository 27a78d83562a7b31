"""`sft`: supervised training of a Hugging Face policy on JSONL files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hookline.plugin_manager.manager import PluginManager
from hookline.policies import HuggingFacePolicy
from hookline.training.config import TrainerConfig
from hookline.training.errors import TrainerConfigError
from hookline.training.tasks.task import Task
from hookline.training.text_examples import read_examples, split
from hookline.training.trainer import Trainer

__all__ = ["SFTConfig", "huggingface_policy", "sft"]


@dataclass
class SFTConfig(TrainerConfig):
    """The config of the task `sft`."""

    dataset: Path | None = None
    """A JSONL file of examples: `prompt` and `completion`, `messages`, or `text`. Required."""
    validation_dataset: Path | None = None
    """A JSONL file of held-out examples."""
    validation_share: float = 0.0
    """The share of `dataset` that is held out for validation, if there is no `validation_dataset`."""
    max_length: int | None = None
    """Cut longer examples to this many tokens. None for no limit."""


def huggingface_policy(task: str, config: TrainerConfig) -> HuggingFacePolicy:
    """The policy that a config names."""
    if config.policy is None:
        raise TrainerConfigError(
            f'task {task!r} needs a policy: set policy = "FOLDER", the folder or hub name of a Hugging Face model'
        )
    return HuggingFacePolicy(config.policy, config.lora)


def _build(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    assert isinstance(config, SFTConfig)
    policy = huggingface_policy("sft", config)
    if config.dataset is None:
        raise TrainerConfigError("task 'sft' needs a dataset: set dataset = \"examples.jsonl\"")
    tokenizer = policy.tokenizer()
    examples = read_examples(config.dataset, tokenizer, config.max_length)
    held_out = []
    if config.validation_dataset is not None:
        held_out = read_examples(config.validation_dataset, tokenizer, config.max_length)
    elif config.validation_share:
        examples, held_out = split(examples, config.validation_share, lambda example: str(example["tokens"]))
    return Trainer(config, policy=policy, dataset=examples, validation_dataset=held_out or None, plugins=plugins)


sft = Task(_build, SFTConfig())
