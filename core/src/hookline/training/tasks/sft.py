"""`sft`: supervised training of a Hugging Face policy on JSONL files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hookline.errors import ConfigError, ConfigFault
from hookline.plugin_manager.manager import PluginManager
from hookline.policies import HuggingFacePolicy
from hookline.training.config import TrainerConfig
from hookline.training.tasks.task import Task
from hookline.training.text_examples import read_examples, split
from hookline.training.trainer import Trainer

__all__ = ["POLICY", "SFTConfig", "check_required", "sft"]

POLICY: Final = 'a policy: set policy = "FOLDER", the folder or hub name of a Hugging Face model'
"""What tasks need that train a Hugging Face policy, for `check_required`."""


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


def check_required(task: str, config: TrainerConfig, required: Mapping[str, str]) -> None:
    """Raise one error for all keys that a config has to set and does not.

    :param required: what the task needs by the name of the key, for the message.
    """
    missing = {key: what for key, what in required.items() if not vars(config)[key]}
    faults = [ConfigFault(key, f"task {task!r} needs {what}") for key, what in missing.items()]
    if faults:
        raise ConfigError(faults)


def _build(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    assert isinstance(config, SFTConfig)
    check_required("sft", config, {"policy": POLICY, "dataset": 'a dataset: set dataset = "examples.jsonl"'})
    assert config.policy is not None
    assert config.dataset is not None
    policy = HuggingFacePolicy(config.policy, config.lora)
    tokenizer = policy.tokenizer()
    examples = read_examples(config.dataset, tokenizer, config.max_length)
    held_out = []
    if config.validation_dataset is not None:
        held_out = read_examples(config.validation_dataset, tokenizer, config.max_length)
    elif config.validation_share:
        examples, held_out = split(examples, config.validation_share, lambda example: str(example["tokens"]))
    return Trainer(config, policy=policy, dataset=examples, validation_dataset=held_out or None, plugins=plugins)


sft = Task(_build, SFTConfig())
