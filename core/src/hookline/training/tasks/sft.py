"""`sft`: supervised training of a Hugging Face policy on JSONL files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from hookline.errors import ConfigError, ConfigFault
from hookline.plugin_manager.manager import PluginManager
from hookline.policies import HuggingFacePolicy
from hookline.training.config import TrainerConfig
from hookline.training.errors import DatasetError
from hookline.training.tasks.task import Task
from hookline.training.text_examples import Example, read_examples, split
from hookline.training.trainer import Trainer

__all__ = ["POLICY", "SFTConfig", "Share", "check_required", "examples_of", "sft"]

POLICY: Final = 'a policy: set policy = "FOLDER", the folder or hub name of a Hugging Face model'
"""What tasks need that train a Hugging Face policy, for `check_required`."""

Share = Annotated[float, Field(ge=0, lt=1)]
"""The share of a dataset that is held out."""


@dataclass
class SFTConfig(TrainerConfig):
    """The config of the task `sft`."""

    dataset: Path | None = None
    """A JSONL file of examples: `prompt` and `completion`, `messages`, or `text`. Required."""
    validation_dataset: Path | None = None
    """A JSONL file of held-out examples."""
    validation_share: Share = 0.0
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


def examples_of(file: Path, policy: HuggingFacePolicy, max_length: int | None = None) -> list[Example]:
    """The examples of a file, by the policy's tokenizer. Those that the policy cannot read are an error.

    :param max_length: cut longer examples to this many tokens.
    """
    examples = read_examples(file, policy.tokenizer(), max_length)
    context, vocabulary = policy.limits()
    longest = max(len(example["tokens"]) for example in examples)
    if context is not None and longest > context:
        count = sum(len(example["tokens"]) > context for example in examples)
        raise DatasetError(
            f"{file}: {count} of {len(examples)} examples are longer than the policy's context of {context} tokens, "
            f"the longest with {longest}: shorten them, or let the task sft cut them by max_length = {context}"
        )
    largest = max(token for example in examples for token in example["tokens"])
    if largest >= vocabulary:
        raise DatasetError(
            f"{file}: the tokenizer makes the token {largest} of an example, but the policy has {vocabulary} tokens: "
            "call model.resize_token_embeddings(len(tokenizer)) and save the model again"
        )
    return examples


def _build(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    assert isinstance(config, SFTConfig)
    check_required("sft", config, {"policy": POLICY, "dataset": 'a dataset: set dataset = "examples.jsonl"'})
    assert config.policy is not None
    assert config.dataset is not None
    policy = HuggingFacePolicy(config.policy, config.lora)
    examples = examples_of(config.dataset, policy, config.max_length)
    held_out = []
    if config.validation_dataset is not None:
        held_out = examples_of(config.validation_dataset, policy, config.max_length)
    elif config.validation_share:
        examples, held_out = split(examples, config.validation_share, lambda example: str(example["tokens"]))
        if not examples or not held_out:
            raise DatasetError(
                f"{config.dataset} has too few examples for validation_share = {config.validation_share}"
            )
    return Trainer(config, policy=policy, dataset=examples, validation_dataset=held_out or None, plugins=plugins)


sft = Task(_build, SFTConfig(losses={"sft": {}}))
