"""Configs say all that is wrong with them at once, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import ConfigError
from hookline.rewards import IntegratedRewardConfig, RewardConfig


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RewardConfig(length_weight=-1, batch_size=0, external_rm_timeout=0, keywords="cat")
    message = str(caught.value)
    assert "the configuration has 4 faults" in message
    assert "RewardConfig.length_weight: must be at least 0.0, got -1" in message
    assert "RewardConfig.batch_size: must be a whole number of at least 1, got 0" in message
    assert "RewardConfig.external_rm_timeout: must be above 0.0, got 0" in message
    assert "RewardConfig.keywords: must be a list of strings, got 'cat'" in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"accuracy_weight": float("nan")}, "RewardConfig.accuracy_weight: must be a finite number, got nan"),
        ({"accuracy_weight": 10**400}, "RewardConfig.accuracy_weight: must be a finite number, got 10000"),
        ({"target_length": 2.5}, "RewardConfig.target_length: must be a whole number of at least 1, got 2.5"),
        ({"keywords": ["cat", ""]}, "RewardConfig.keywords: has '': every keyword must be a non-empty string"),
        ({"on_failure": "ignore"}, "RewardConfig.on_failure: must be 'raise' or 'not_applicable', got 'ignore'"),
        ({"custom_weights": {"own": -1}}, r"RewardConfig.custom_weights\['own'\]: must be at least 0.0, got -1"),
        ({"perplexity_model": ""}, "RewardConfig.perplexity_model: must be a model's folder, got ''"),
        ({"reward_model": 5}, "RewardConfig.reward_model: must be a model's folder, got 5"),
        ({"target_perplexity": 0.5}, "RewardConfig.target_perplexity: must be at least 1.0, got 0.5"),
        ({"reward_model_range": 3}, "RewardConfig.reward_model_range: must be two numbers, got 3"),
        ({"reward_model_range": (0, "1")}, "RewardConfig.reward_model_range: must be a finite number, got '1'"),
        ({"reward_model_range": (1, 1)}, r"reward_model_range: must be two numbers in rising order, got \(1, 1\)"),
        ({"lesson_range": (1, -1)}, r"lesson_range: must be two numbers in rising order, got \(1, -1\)"),
        ({"mlx_device": "tpu"}, "RewardConfig.mlx_device: must be 'gpu', 'cpu' or None, got 'tpu'"),
        ({"mlx_memory_limit": 0}, "RewardConfig.mlx_memory_limit: must be a whole number of at least 1, got 0"),
        ({"external_rm_url": "ftp://host/x"}, "external_rm_url: must be an http or https URL with a host"),
        ({"external_rm_url": "http:///x"}, "external_rm_url: must be an http or https URL with a host"),
        ({"external_rm_url": "file:///etc/passwd"}, "external_rm_url: must be an http or https URL with a host"),
    ],
)
def test_a_bad_reward_config_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RewardConfig(**fields)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(
        ConfigError, match="put a token into the environment variable HOOKLINE_REWARD_MODEL_TOKEN"
    ) as caught:
        RewardConfig(external_rm_url="https://user:hunter2@host/score")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward_config": {}}, "IntegratedRewardConfig.reward_config: must be a RewardConfig, got {}"),
        ({"verification_threshold": 1.5}, "verification_threshold: must be at most 1.0, got 1.5"),
        ({"min_reward_threshold": 0.8, "max_reward_threshold": 0.5}, r"is above max_reward_threshold \(0.5\)"),
        ({"target_acceptance_rate": -0.1}, "target_acceptance_rate: must be at least 0.0"),
        ({"quality_measures": {"own": 5}}, r"quality_measures\['own'\]: must be a function of episodes, got 5"),
    ],
)
def test_a_bad_integrated_config_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IntegratedRewardConfig(**fields)


def test_an_ellipsis_stands_for_the_defaults() -> None:
    assert RewardConfig(...) == RewardConfig()  # type: ignore[arg-type]


def test_a_run_file_names_models_relative_to_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from hookline.run_file import Layer
    from hookline.training.config_files import apply_layers
    from hookline.training.tasks.grpo import GRPOTaskConfig

    options = {"perplexity_model": "policy", "reward_model": "models/reward", "reward_model_range": [-2, 2.5]}
    config = apply_layers(
        GRPOTaskConfig(), [Layer({"rewards": {"reward_config": options}}, "run.toml: ", tmp_path)]
    ).rewards
    assert config is not None
    assert config.reward_config.perplexity_model == "policy"
    assert config.reward_config.reward_model == tmp_path / "models" / "reward"
    assert config.reward_config.reward_model_range == (-2.0, 2.5)
    other = Layer({"rewards": {"reward_config": {"perplexity_model": "./policy"}}}, "run.toml: ", tmp_path)
    named = apply_layers(GRPOTaskConfig(), [other]).rewards
    assert named is not None
    assert named.reward_config.perplexity_model == tmp_path / "policy"
