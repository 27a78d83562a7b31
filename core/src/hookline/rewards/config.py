"""The configs of rewards: `RewardConfig` for scoring, `IntegratedRewardConfig` for verification and filtering."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from hookline.errors import ConfigError, ConfigFault
from hookline.http.requests import url_problem
from hookline.rewards.errors import OnFailure
from hookline_hookspecs.errors import shortened

__all__ = ["POLICY", "TOKEN_VARIABLE", "IntegratedRewardConfig", "QualityMeasure", "RewardConfig", "keywords_problem"]

POLICY: Final = "policy"
"""As a perplexity model: the policy itself, by the log-probabilities that its episodes record."""

TOKEN_VARIABLE: Final = "HOOKLINE_REWARD_MODEL_TOKEN"
"""The environment variable with the token of an external reward model."""

QualityMeasure = Callable[[Sequence[Any]], float]
"""Computes one number from scored episodes, which are records or dictionaries, as the caller passed them."""


@dataclass
class RewardConfig:
    """The rewards, their weights and their targets. Weights are relative to each other."""

    length_weight: float = 0.1
    keyword_weight: float = 0.2
    perplexity_weight: float = 0.3
    accuracy_weight: float = 0.4

    target_length: int = 50
    """Words in a response. Metadata of an episode may override it, as it may override the keywords."""
    keywords: Sequence[str] | None = None
    """Words and phrases that responses should contain. Without any, the keyword reward does not apply."""

    external_rm_url: str | None = None
    """The http or https URL of an external reward model."""
    external_rm_timeout: float = 30.0
    """Seconds for one request, up to the last byte of its response."""

    batch_size: int = 32
    """Episodes that are scored together, by a model in MLX too, and in one request to the external reward model."""
    max_workers: int = 4
    """Concurrent requests to the external reward model."""

    external_rm_weight: float = 1.0
    external_rm_retries: int = 3
    """How often a request is sent again after a connection error, a timeout, or a status such as 429 or 5xx."""
    external_rm_backoff: float = 0.5
    """Longest wait in seconds before the first retry. It doubles with each retry. Retry-After is respected."""

    perplexity_model: Annotated[Literal["policy"] | Path | str | None, Field(union_mode="left_to_right")] = None
    """The folder of a causal language model: the perplexity of a response is that under this model.
    `policy` is the policy itself: the log-probabilities that the episode records. None takes those where an episode has
    them, and otherwise guesses from the words."""
    target_perplexity: float = 1.0
    """The perplexity up to which the reward is 1. Above it, the reward is `target_perplexity / perplexity`."""
    reward_model: Annotated[Path | str | None, Field(union_mode="left_to_right")] = None
    """The folder of a sequence classifier with one label."""
    reward_model_weight: float = 1.0
    reward_model_range: tuple[float, float] | None = None
    """The logits of the reward model that become 0 and 1, linearly and clipped. None takes the logit's sigmoid."""
    mlx_device: Literal["gpu", "cpu"] | None = None
    """Where MLX runs these models. None for MLX's GPU; where it has none, NumPy takes those of the Llama family."""
    mlx_memory_limit: int | None = None
    """Bytes that MLX may use while these models score; None for MLX's default. Larger batches are split. NumPy does
    not heed it."""

    lesson_range: tuple[float, float] | None = None
    """The rewards of lessons that become 0 and 1, linearly and clipped. None takes them as they are, in 0..1."""
    custom_weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of custom rewards by name. The default is 1."""
    on_failure: OnFailure = "raise"
    """What to do when a plugin, reward function, external reward model or verifier fails, or a lesson's reward is out
    of range: raise an error, or leave it out of the weighting of these episodes."""

    def __post_init__(self) -> None:
        _fill_in_ellipses(self)
        faults = _Faults(self)
        weights = ("length_weight", "keyword_weight", "perplexity_weight", "accuracy_weight", "external_rm_weight")
        faults.check_numbers(*weights, "reward_model_weight", "external_rm_backoff", least=0.0)
        faults.check_numbers("target_perplexity", least=1.0)
        faults.check_numbers("external_rm_timeout", above=0.0)
        faults.check_whole_numbers("target_length", "batch_size", "max_workers", least=1)
        faults.check_whole_numbers("external_rm_retries", least=0)
        if self.on_failure not in ("raise", "not_applicable"):
            faults.add("on_failure", f"must be 'raise' or 'not_applicable', got {self.on_failure!r}")
        for name in ("perplexity_model", "reward_model"):
            folder = getattr(self, name)
            if folder is not None and (not isinstance(folder, (str, Path)) or not str(folder)):
                faults.add(name, f"must be a model's folder, got {folder!r}")
        for name in ("reward_model_range", "lesson_range"):
            if getattr(self, name) is not None:
                faults.add(name, _range_problem(getattr(self, name)))
        if self.mlx_device not in (None, "gpu", "cpu"):
            faults.add("mlx_device", f"must be 'gpu', 'cpu' or None, got {self.mlx_device!r}")
        if self.mlx_memory_limit is not None:
            faults.check_whole_numbers("mlx_memory_limit", least=1)
        if self.keywords is not None:
            faults.add("keywords", keywords_problem(self.keywords))
        if self.external_rm_url is not None:
            faults.add("external_rm_url", url_problem(self.external_rm_url, TOKEN_VARIABLE))
        for name, weight in self.custom_weights.items():
            faults.add(f"custom_weights[{name!r}]", _number_problem(weight, least=0.0))
        faults.raise_any()


@dataclass
class IntegratedRewardConfig:
    """Rewards, verification, and the thresholds for accepting an episode. All bounds are inclusive."""

    reward_config: RewardConfig = field(default_factory=RewardConfig)

    enable_verification: bool = True
    verification_threshold: float = 0.7
    """The lowest verification score that passes."""
    strict_filtering: bool = False
    """Accept an episode that passes by reward and by verification; otherwise one that passes by either."""

    min_reward_threshold: float = 0.3
    max_reward_threshold: float = 1.0

    batch_size: int = 32
    """Episodes that are scored and verified together, with one emission of each reward event."""
    enable_mlx_compilation: bool = True
    """Compute rewards with compiled MLX if it is installed; otherwise with NumPy."""

    target_acceptance_rate: float | None = None
    """If set, both thresholds are adjusted after each batch, to accept about this share of episodes."""
    quality_measures: Mapping[str, QualityMeasure] = field(default_factory=dict)
    """Your own measures. `get_quality_metrics` returns them under these names."""

    def __post_init__(self) -> None:
        _fill_in_ellipses(self)
        faults = _Faults(self)
        if not isinstance(self.reward_config, RewardConfig):
            faults.add("reward_config", f"must be a RewardConfig, got {self.reward_config!r}")
        faults.check_numbers(
            "verification_threshold", "min_reward_threshold", "max_reward_threshold", least=0.0, most=1.0
        )
        if not faults and self.min_reward_threshold > self.max_reward_threshold:
            faults.add("min_reward_threshold", f"is above max_reward_threshold ({self.max_reward_threshold!r})")
        faults.check_whole_numbers("batch_size", least=1)
        if self.target_acceptance_rate is not None:
            faults.check_numbers("target_acceptance_rate", least=0.0, most=1.0)
        for name, measure in self.quality_measures.items():
            if not callable(measure):
                faults.add(f"quality_measures[{name!r}]", f"must be a function of episodes, got {measure!r}")
        faults.raise_any()


def _fill_in_ellipses(config: RewardConfig | IntegratedRewardConfig) -> None:
    # Documents write `RewardConfig(...)` with a literal ellipsis: it means the default.
    for own in fields(config):
        if getattr(config, own.name) is ...:
            setattr(config, own.name, own.default if own.default_factory is MISSING else own.default_factory())


class _Faults:
    """Collects all faults of a config, to report them together."""

    def __init__(self, config: RewardConfig | IntegratedRewardConfig) -> None:
        self._config = config
        self._faults: list[ConfigFault] = []

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, name: str, problem: str | None) -> None:
        if problem is not None:
            self._faults.append(ConfigFault(f"{type(self._config).__name__}.{name}", problem))

    def check_numbers(self, *names: str, **bounds: float) -> None:
        for name in names:
            self.add(name, _number_problem(getattr(self._config, name), **bounds))

    def check_whole_numbers(self, *names: str, least: int) -> None:
        for name in names:
            value = getattr(self._config, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                self.add(name, f"must be a whole number of at least {least}, got {value!r}")

    def raise_any(self) -> None:
        if self._faults:
            raise ConfigError(self._faults)


def _number_problem(
    value: Any, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> str | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -sys.float_info.max <= value <= sys.float_info.max:
        return f"must be a finite number, got {shortened(value)}"
    if least is not None and value < least:
        return f"must be at least {least}, got {value!r}"
    if above is not None and value <= above:
        return f"must be above {above}, got {value!r}"
    if most is not None and value > most:
        return f"must be at most {most}, got {value!r}"
    return None


def _range_problem(bounds: Any) -> str | None:
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        return f"must be two numbers, got {bounds!r}"
    problems = [problem for problem in map(_number_problem, bounds) if problem]
    if problems:
        return problems[0]
    return None if bounds[0] < bounds[1] else f"must be two numbers in rising order, got {bounds!r}"


def keywords_problem(keywords: Any) -> str | None:
    """What is wrong with the keywords of a config or an episode; None if they are valid."""
    if isinstance(keywords, str) or not isinstance(keywords, Sequence):
        return f"must be a list of strings, got {keywords!r}"
    for keyword in keywords:
        if not isinstance(keyword, str) or not keyword.strip():
            return f"has {keyword!r}: every keyword must be a non-empty string"
    return None
