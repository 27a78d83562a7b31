"""The checkpoint part of the trainer hooks' design document, run as it stands there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from hookline import hookimpl  # noqa: E402
from hookline.policies import Discrete, MLPPolicy  # noqa: E402
from hookline.rollout import Curriculum, CurriculumConfig  # noqa: E402
from hookline.training import RolloutConfig, Trainer, TrainerConfig, TrainerHook  # noqa: E402
from hookline_checkpoint import CheckpointHook, CheckpointManager  # noqa: E402


def configuration(epochs: int, resume: bool, run_dir: Path) -> TrainerConfig:
    config = TrainerConfig(
        epochs=epochs,
        run_dir=run_dir,
        resume=resume,
        rollout=RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=2),
    )
    config.optimizer.schedule = "constant"
    config.checkpoint = SimpleNamespace(checkpoint_interval=2, wandb_checkpoint_interval=4)  # type: ignore[attr-defined]
    return config


def train(run_dir: Path, config: Any, checkpoint_manager: CheckpointManager, *hooks: Any) -> tuple[Trainer, Any]:
    # Initialize core training components
    curriculum = Curriculum(CurriculumConfig(micro_eval_frequency=None, eval_frequency=None))
    policy = MLPPolicy(4, Discrete(2), hidden=(8,))
    trainer = Trainer(config, curriculum, policy)

    # Add hooks based on configuration
    if config.checkpoint.checkpoint_interval > 0:
        checkpoint_hook = CheckpointHook(
            checkpoint_manager,
            config.checkpoint.checkpoint_interval,
            config.checkpoint.wandb_checkpoint_interval,
        )
        trainer.add_hook(checkpoint_hook)
    for hook in hooks:
        trainer.add_hook(hook)

    # Run training with clean separation
    trainer.train()
    return trainer, checkpoint_hook


def weights(trainer: Trainer) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in trainer.policy.state_dict().items()}


def test_the_documents_example_saves_and_resumes(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", configuration(7, False, tmp_path / "whole"), CheckpointManager())
    first, hook = train(tmp_path / "two", configuration(4, False, tmp_path / "two"), CheckpointManager(keep_last=1))
    assert hook.latest_wandb_uri is None
    assert first.state.latest_checkpoint_path == tmp_path / "two" / "checkpoints" / "epoch-000003"

    starts: list[Any] = []

    class Watcher:
        @hookimpl
        def pre_training(self, report_data: dict[str, Any]) -> None:
            starts.append(report_data["start_epoch"])

    later, _ = train(tmp_path / "two", configuration(7, True, tmp_path / "two"), CheckpointManager(), Watcher())
    assert starts == [4]
    assert weights(later) == weights(whole)
    assert later.optimizer.state_dict()["state"][0]["exp_avg"].equal(
        whole.optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_another_hook_can_ask_for_the_checkpoint_hook(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Evaluation(TrainerHook):
        def on_epoch_end(self, checkpoint_hook: Any, trainer_state: Any, wandb_run: Any) -> None:
            seen.append((type(checkpoint_hook).__name__, checkpoint_hook.latest_wandb_uri))

    train(tmp_path / "run", configuration(2, False, tmp_path / "run"), CheckpointManager(), Evaluation())
    assert seen == [("CheckpointHook", None)] * 2


def test_on_training_start_loads_by_hand_what_a_run_loads_by_itself(tmp_path: Path) -> None:
    config = configuration(3, False, tmp_path / "run")
    first, _ = train(tmp_path / "run", config, CheckpointManager())
    trainer = Trainer(configuration(3, True, tmp_path / "run"), None, MLPPolicy(4, Discrete(2), hidden=(8,)))
    hook = CheckpointHook(CheckpointManager(tmp_path / "run"), 2, 4)
    trainer.add_hook(hook)
    policy = hook.on_training_start(trainer.state)
    assert policy is trainer.policy
    assert weights(trainer) == weights(first)
    trainer.state.resume = False
    assert hook.on_training_start(trainer.state) is None
