"""`TrainerConfig`: the options of a trainer, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, TypeAdapter, ValidationError, ValidationInfo

from hookline.errors import ConfigFault
from hookline.option_models import validation_faults
from hookline.policies import LoraConfig
from hookline.training.errors import TrainerConfigError

__all__ = [
    "LearnerConfig",
    "LoraConfig",
    "OptimizerConfig",
    "RolloutConfig",
    "SupervisedConfig",
    "TrainerConfig",
    "as_plain_data",
    "check_config",
    "config_faults",
    "from_plain_data",
]

Config = TypeVar("Config", bound="TrainerConfig")

LARGEST_SEED: Final = 2**32 - 1
"""The largest seed that the rngs of torch, JAX and NumPy all accept."""


def _folder_or_hub_name(text: str, info: ValidationInfo) -> str:
    """An absolute path if there is such a folder beside the run file, or if it can only be a path; else the name."""
    if info.context is None:
        return text
    folder = info.context["folder"] / Path(text).expanduser()
    return str(folder.resolve()) if folder.is_dir() or text.startswith((".", "/", "~")) else text


ModelName = Annotated[str, AfterValidator(_folder_or_hub_name)]
"""The folder of a Hugging Face model, or its name on the hub."""


@dataclass
class OptimizerConfig:
    """The optimizer and its learning-rate schedule."""

    name: str = "adamw"
    """The case-insensitive name of a `torch.optim` class, or the import path of any other optimizer."""
    learning_rate: float = 2.5e-4
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """`linear` and `cosine` fall to zero at the end of the run."""
    warmup_steps: int = 0
    """Gradient steps over which the learning rate first rises linearly."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the optimizer, such as `betas`, `eps` and `weight_decay`."""
    max_grad_norm: float | None = 0.5
    """Clip the norm of the gradient to this value; None for no clipping."""


@dataclass
class LearnerConfig:
    """Where and how gradients are computed."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, which uses a GPU if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes matrix products in bfloat16 with autocast. Weights and optimizer state stay in float32."""
    micro_batch_rows: int | None = None
    """Rows in one forward pass. A larger minibatch accumulates gradients. None for the whole minibatch."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This saves memory and takes a third more time."""
    data_parallel: Literal["ddp", "fsdp2"] = "ddp"
    """Under torchrun, each rank holds the whole policy and optimizer state (`ddp`) or a shard of both (`fsdp2`)."""


@dataclass
class RolloutConfig:
    """The rollout phase of an epoch and the gradient steps on its experience. Not used with a dataset."""

    num_environments: int = 4
    """Parallel environments on each rank; for text, prompts per rollout."""
    steps_per_rollout: int = 128
    """Steps in each environment."""
    samples_per_prompt: int = 8
    """Responses to each prompt of a text lesson."""
    temperature: float = 1.0
    """The divisor of the logits when responses are sampled."""
    top_k: int | None = None
    """Sample from this many of the likeliest tokens. None for all."""
    top_p: float | None = None
    """Of those, sample from the fewest tokens whose probabilities add up to at least this. None for all."""
    engine: str = "auto"
    """The engine that generates text: `jax`, `transformers`, `mlx`, or one of a plugin. `auto` chooses `jax` if it
    supports the policy, else `transformers`."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """The precision of the engine."""
    source: str = "local"
    """Where rollouts are made: `local` in this thread, `ahead` in another one while the learner trains, `processes` on
    this machine, or a source of a plugin."""
    workers: int = 1
    """How many workers the source has, over all ranks."""
    max_staleness: int = 1
    """How many versions the weights of a rollout may be behind. Older rollouts are dropped. `local` has none."""
    source_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the source."""
    rollouts_per_epoch: int = 1
    minibatches: int = 4
    """The number of minibatches that an epoch's experience is divided into."""
    update_epochs: int = 4
    """Passes over the experience in each epoch."""


@dataclass
class SupervisedConfig:
    """Batches and validation when training on a dataset."""

    batch_size: int = 32
    """Examples in each gradient step, over all ranks."""
    shuffle: bool = True
    validate_every: int | None = None
    """Gradient steps between validations; None to validate only after the last step."""
    validate_at_start: bool = False
    """Validate before the first step as well."""


@dataclass
class TrainerConfig:
    """The options of a run. The defaults are a small run. Subclass it to add fields of your own."""

    epochs: int = 4
    seed: int = 0
    run_dir: Path | None = None
    """The run's folder; None for a run that writes no files."""
    resume: bool = False
    """Resume from the run's folder. An installed plugin restores the state."""
    task: str | None = None
    """The task's name for `hookline train`, if the run has one."""
    policy: ModelName | None = None
    """A Hugging Face causal LM: its folder or its name on the hub. None for the policy that the task builds."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of all weights. Needs `policy`."""
    losses: Mapping[str, Mapping[str, Any]] | None = None
    """The options of each loss, by the loss's name. None for the defaults:
    `sft` for a dataset, `ppo_actor` and `ppo_critic` for control, `grpo` for text."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    threads: int | None = 1
    """Threads of torch. Small models are faster with one. None for torch's default."""
    rank_timeout_seconds: float = 60.0
    """How long a rank waits for the others before it fails."""


def check_config(config: TrainerConfig) -> None:
    """Raise an error that lists all invalid values."""
    faults = config_faults(config)
    if faults:
        shown = "; ".join(f"{fault.where} {fault.problem}" for fault in faults)
        raise TrainerConfigError(f"{type(config).__name__}: {shown}")


def config_faults(config: TrainerConfig) -> list[ConfigFault]:
    """The values that have the right type and are invalid."""
    rollout, supervised, optimizer = config.rollout, config.supervised, config.optimizer
    at_least_one = {
        "epochs": config.epochs,
        "rollout.num_environments": rollout.num_environments,
        "rollout.steps_per_rollout": rollout.steps_per_rollout,
        "rollout.samples_per_prompt": rollout.samples_per_prompt,
        "rollout.rollouts_per_epoch": rollout.rollouts_per_epoch,
        "rollout.workers": rollout.workers,
        "rollout.minibatches": rollout.minibatches,
        "rollout.update_epochs": rollout.update_epochs,
        "supervised.batch_size": supervised.batch_size,
        "supervised.validate_every": 1 if supervised.validate_every is None else supervised.validate_every,
        "learner.micro_batch_rows": 1 if config.learner.micro_batch_rows is None else config.learner.micro_batch_rows,
        "threads": 1 if config.threads is None else config.threads,
    }
    problems = {name: f"must be at least 1, got {value!r}" for name, value in at_least_one.items() if not value >= 1}
    if not 0 <= config.seed <= LARGEST_SEED:
        problems["seed"] = f"must be from 0 to {LARGEST_SEED}, got {config.seed!r}"
    if not optimizer.learning_rate > 0:
        problems["optimizer.learning_rate"] = f"must be greater than 0, got {optimizer.learning_rate!r}"
    if optimizer.max_grad_norm is not None and not optimizer.max_grad_norm > 0:
        problems["optimizer.max_grad_norm"] = f"must be greater than 0, or None, got {optimizer.max_grad_norm!r}"
    for name, value in {
        "optimizer.warmup_steps": optimizer.warmup_steps,
        "rollout.max_staleness": rollout.max_staleness,
    }.items():
        if not value >= 0:
            problems[name] = f"must be at least 0, got {value!r}"
    for section in ("optimizer", "learner", "rollout"):
        problems |= _unknown_choices(section, getattr(config, section))
    if not config.rank_timeout_seconds > 0:
        problems["rank_timeout_seconds"] = f"must be greater than 0, got {config.rank_timeout_seconds!r}"
    return [ConfigFault(name, problem) for name, problem in problems.items()]


def _unknown_choices(section: str, config: Any) -> dict[str, str]:
    """The problem of each `Literal` field whose value is not one of its choices."""
    problems = {}
    for name, hint in get_type_hints(type(config)).items():
        choices, value = get_args(hint), getattr(config, name)
        if get_origin(hint) is Literal and value not in choices:
            problems[f"{section}.{name}"] = f"must be one of {', '.join(choices)}, got {value!r}"
    return problems


def as_plain_data(value: Any) -> Any:
    """A config as JSON values. Other objects, such as functions, become their `repr`."""
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
    """The inverse of `as_plain_data`."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        faults = "; ".join(map(str, validation_faults(error, kind)))
        raise TrainerConfigError(f"not a {kind.__name__} of this version of Hookline: {faults}") from error
