"""`TrainerConfig`: all that a trainer is told in plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hookline.pydantic_faults import validation_faults
from hookline.training.errors import TrainerConfigError

__all__ = [
    "LearnerConfig",
    "OptimizerConfig",
    "RolloutConfig",
    "SupervisedConfig",
    "TrainerConfig",
    "as_plain_data",
    "check_config",
    "from_plain_data",
]

Config = TypeVar("Config", bound="TrainerConfig")

LARGEST_SEED: Final = 2**32 - 1
"""What the generators of torch, JAX and NumPy all take."""


@dataclass
class OptimizerConfig:
    """Which optimizer, and how its learning rate goes."""

    name: str = "adamw"
    """A class of `torch.optim` by its name in any case, or any other optimizer by its import path."""
    learning_rate: float = 2.5e-4
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls to zero at the end of the run, or that it does not."""
    warmup_steps: int = 0
    """Gradient steps in which the learning rate rises in a straight line before that."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the optimizer, such as `betas`, `eps` and `weight_decay`."""
    max_grad_norm: float | None = 0.5
    """Gradients with a greater norm are scaled down to it; None leaves them as they are."""


@dataclass
class LearnerConfig:
    """Where and how gradients are computed."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes a GPU where there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes matrix products in bfloat16, by autocast; weights and optimizer stay in float32."""
    micro_batch_rows: int | None = None
    """Rows that go through the policy at a time; the gradients of a larger minibatch are accumulated. None for all."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass rather than keep them: less memory, a third more time."""
    data_parallel: Literal["ddp", "fsdp2"] = "ddp"
    """What each rank under torchrun holds: all of the policy and its optimizer (`ddp`), or a part of them (`fsdp2`)."""


@dataclass
class RolloutConfig:
    """The rollout phase of an epoch, and how its experience is gone through; used where there is no dataset."""

    num_environments: int = 4
    """Copies of an environment on each rank; for text, prompts in a rollout."""
    steps_per_rollout: int = 128
    """Steps in each copy of an environment."""
    samples_per_prompt: int = 8
    """Responses to each prompt of a text lesson."""
    rollouts_per_epoch: int = 1
    minibatches: int = 4
    """How many minibatches the epoch's experience is divided into."""
    update_epochs: int = 4
    """How often the experience is gone through."""


@dataclass
class SupervisedConfig:
    """How a dataset is gone through."""

    batch_size: int = 32
    """Examples in each gradient step, over all ranks."""
    shuffle: bool = True
    validate_every: int | None = None
    """Gradient steps between two validations; None for none before the last step's."""
    validate_at_start: bool = False
    """Validate before the first step as well."""


@dataclass
class TrainerConfig:
    """A small run, unless said otherwise. Subclass it to carry what your own code needs besides."""

    epochs: int = 4
    seed: int = 0
    run_dir: Path | None = None
    """The run's folder; None for a run that leaves no files."""
    resume: bool = False
    """Go on from what the run's folder holds; an installed plugin restores it."""
    task: str | None = None
    """What the run is called on the command line, where it is one that `hookline train` knows."""
    losses: Mapping[str, Mapping[str, Any]] | None = None
    """The options of each loss by the loss's name; None for those that suit the data:
    `sft` for a dataset, `ppo_actor` and `ppo_critic` for control, `grpo` for text."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    threads: int | None = 1
    """Threads that torch computes with; small models are faster with one. None leaves torch's own choice."""
    rank_timeout_seconds: float = 60.0
    """How long a rank waits for the others before it gives up."""


def check_config(config: TrainerConfig) -> None:
    """Raise an error that lists every value that makes no sense."""
    rollout, supervised, optimizer = config.rollout, config.supervised, config.optimizer
    at_least_one = {
        "epochs": config.epochs,
        "rollout.num_environments": rollout.num_environments,
        "rollout.steps_per_rollout": rollout.steps_per_rollout,
        "rollout.samples_per_prompt": rollout.samples_per_prompt,
        "rollout.rollouts_per_epoch": rollout.rollouts_per_epoch,
        "rollout.minibatches": rollout.minibatches,
        "rollout.update_epochs": rollout.update_epochs,
        "supervised.batch_size": supervised.batch_size,
        "supervised.validate_every": 1 if supervised.validate_every is None else supervised.validate_every,
        "learner.micro_batch_rows": 1 if config.learner.micro_batch_rows is None else config.learner.micro_batch_rows,
        "threads": 1 if config.threads is None else config.threads,
    }
    faults = [f"{name} must be at least 1, got {value!r}" for name, value in at_least_one.items() if not value >= 1]
    if not 0 <= config.seed <= LARGEST_SEED:
        faults.append(f"seed must be from 0 to {LARGEST_SEED}, got {config.seed!r}")
    if not optimizer.learning_rate > 0:
        faults.append(f"optimizer.learning_rate must be greater than 0, got {optimizer.learning_rate!r}")
    if optimizer.max_grad_norm is not None and not optimizer.max_grad_norm > 0:
        faults.append(f"optimizer.max_grad_norm must be greater than 0, or None, got {optimizer.max_grad_norm!r}")
    if not optimizer.warmup_steps >= 0:
        faults.append(f"optimizer.warmup_steps must be at least 0, got {optimizer.warmup_steps!r}")
    faults += _unknown_choices("optimizer", optimizer) + _unknown_choices("learner", config.learner)
    if not config.rank_timeout_seconds > 0:
        faults.append(f"rank_timeout_seconds must be greater than 0, got {config.rank_timeout_seconds!r}")
    if faults:
        raise TrainerConfigError(f"{type(config).__name__}: " + "; ".join(faults))


def _unknown_choices(section: str, config: Any) -> list[str]:
    """Fields that must have one of a few values, and have none of them."""
    faults = []
    for name, hint in get_type_hints(type(config)).items():
        choices, value = get_args(hint), getattr(config, name)
        if get_origin(hint) is Literal and value not in choices:
            faults.append(f"{section}.{name} must be one of {', '.join(choices)}, got {value!r}")
    return faults


def as_plain_data(value: Any) -> Any:
    """A config as JSON can hold it. What it cannot hold, such as a function, is there as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {own.name: as_plain_data(getattr(value, own.name)) for own in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain_data(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value) if isinstance(value, Path) else repr(value)


def from_plain_data(kind: type[Config], data: Mapping[str, Any]) -> Config:
    """The config that `as_plain_data` was given."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        faults = "; ".join(map(str, validation_faults(error, kind)))
        raise TrainerConfigError(f"this is no {kind.__name__} of this version of Hookline: {faults}") from error
