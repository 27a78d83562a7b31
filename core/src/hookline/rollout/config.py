"""`RolloutWorkerConfig`: the settings of a rollout worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hookline.policies.protocol import HasTokenizer, PolicySpecification, Tokenizer
from hookline.rollout.curriculum import CurriculumConfig
from hookline.rollout.errors import RolloutError
from hookline.rollout.text.problems import CharacterTokenizer

__all__ = ["RolloutWorkerConfig", "SamplingConfig", "check_config", "find_tokenizer"]


@dataclass
class SamplingConfig:
    """How responses to text lessons are sampled."""

    samples_per_prompt: int = 1
    temperature: float = 1.0
    """The divisor of the logits. 0 takes the likeliest token, and is used in evaluations only."""
    top_k: int | None = None
    """Sample from this many of the likeliest tokens. None for all."""
    top_p: float | None = None
    """Of those, sample from the fewest tokens whose probabilities add up to at least this. None for all."""


@dataclass
class RolloutWorkerConfig:
    """The settings of a worker. The defaults make a small CartPole worker."""

    curriculum_config: CurriculumConfig = field(default_factory=CurriculumConfig)
    policy: PolicySpecification | None = None
    """None for the default policy of the first lesson."""
    num_environments: int = 8
    """Environments that are played in parallel. For text, the number of prompts in a rollout."""
    steps_per_rollout: int = 128
    """Steps in each environment."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: str = "auto"
    """The engine that generates text: `jax`, `transformers`, `mlx`, or one of a plugin. `auto` chooses `jax` if it
    supports the policy, else `transformers`."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """The precision of the engine."""
    tokenizer: Tokenizer | None = None
    """None for the policy's own, or a `CharacterTokenizer` if it has none."""
    seed: int = 0
    worker_index: int = 0
    """The index of this worker. Only worker 0 evaluates."""
    compilation_cache: Path | None = None
    """The folder of JAX's compilation cache, which later processes use again."""


def find_tokenizer(config: RolloutWorkerConfig) -> Tokenizer:
    """The tokenizer of the config, or the policy's own, or a `CharacterTokenizer`."""
    if config.tokenizer is not None:
        return config.tokenizer
    return config.policy.tokenizer() if isinstance(config.policy, HasTokenizer) else CharacterTokenizer()


def check_config(config: RolloutWorkerConfig) -> None:
    """Raise an error that lists every value out of range."""
    at_least_one = {
        "num_environments": config.num_environments,
        "steps_per_rollout": config.steps_per_rollout,
        "sampling.samples_per_prompt": config.sampling.samples_per_prompt,
        "curriculum_config.eval_n_examples": config.curriculum_config.eval_n_examples,
        "curriculum_config.micro_eval_n_examples": config.curriculum_config.micro_eval_n_examples,
    }
    faults = [f"{name} must be at least 1, got {value!r}" for name, value in at_least_one.items() if value < 1]
    if config.sampling.temperature <= 0:
        faults.append(f"sampling.temperature must be greater than 0, got {config.sampling.temperature!r}")
    if config.sampling.top_k is not None:
        vocabulary = getattr(config.policy, "vocabulary", None) or find_tokenizer(config).size
        if not 1 <= config.sampling.top_k <= vocabulary:
            faults.append(f"sampling.top_k must be 1 to {vocabulary} or None, got {config.sampling.top_k!r}")
    if config.sampling.top_p is not None and not 0 < config.sampling.top_p <= 1:
        faults.append(f"sampling.top_p must be greater than 0 and at most 1, or None, got {config.sampling.top_p!r}")
    if not 0 <= config.curriculum_config.smoothing < 1:
        faults.append(f"curriculum_config.smoothing must be 0 up to 1, got {config.curriculum_config.smoothing!r}")
    if not 0 < config.curriculum_config.sampling_floor <= 1:
        floor = config.curriculum_config.sampling_floor
        faults.append(f"curriculum_config.sampling_floor must be greater than 0 and at most 1, got {floor!r}")
    if faults:
        raise RolloutError("RolloutWorkerConfig: " + "; ".join(faults))
