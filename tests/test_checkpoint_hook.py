"""The checkpoint part of the trainer hooks' design document, run as it stands there."""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hookline_hookspecs

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import gymnasium  # noqa: E402
import safetensors.torch  # noqa: E402

from hookline import hookimpl  # noqa: E402
from hookline.policies import Discrete, MLPPolicy  # noqa: E402
from hookline.rollout import Curriculum, CurriculumConfig, Lesson  # noqa: E402
from hookline.training import RolloutConfig, Trainer, TrainerConfig, TrainerHook  # noqa: E402
from hookline_checkpoint import CheckpointHook, CheckpointManager  # noqa: E402
from hookline_evaluation import EvaluationConfig, EvaluationHook  # noqa: E402
from hookline_metrics import MetricsHook  # noqa: E402


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


class MettaAgent(torch.nn.Module):  # type: ignore[misc]
    """A policy as the document makes it: from an environment, with a forward of its own and no method of ours."""

    def __init__(self, env: Any, system_cfg: Any, agent_cfg: Any) -> None:
        super().__init__()
        self.env = env
        width = agent_cfg.hidden
        self.encoder = torch.nn.Sequential(torch.nn.Linear(env.observation_space.shape[0], width), torch.nn.ReLU())
        self.actor = torch.nn.Linear(width, int(env.action_space.n))
        self.critic = torch.nn.Linear(width, 1)
        self.to(system_cfg.device)

    def forward(self, obs: Any) -> tuple[Any, Any]:
        x = self.encoder(obs)
        return self.actor(x), self.critic(x)


@pytest.mark.parametrize("environment", ["CartPole-v1", lambda: gymnasium.make("CartPole-v1")])
def test_the_documents_example_runs_as_one_piece(tmp_path: Path, environment: Any) -> None:
    config = configuration(2, False, tmp_path / "run")
    config.curriculum = CurriculumConfig([Lesson("cartpole", environment)])  # type: ignore[attr-defined]
    config.evaluation = EvaluationConfig(every=1, n_examples=2)  # type: ignore[attr-defined]
    config.verbose = False  # type: ignore[attr-defined]
    env = gymnasium.make("CartPole-v1")
    system_cfg, agent_cfg = SimpleNamespace(device="cpu"), SimpleNamespace(hidden=8)
    checkpoint_manager, wandb_run, timer = CheckpointManager(), None, None

    class Client:
        def __init__(self) -> None:
            self.names: set[str] = set()

        def record(self, step: int, epoch: int | None, numbers: Any) -> None:
            self.names.update(numbers)

    stats_client = Client()

    def train(run_dir, config):  # type: ignore[no-untyped-def]
        # Initialize core training components
        curriculum = Curriculum(config.curriculum)
        policy = MettaAgent(env, system_cfg, agent_cfg)
        trainer = Trainer(config, curriculum, policy)

        # Add hooks based on configuration
        if config.checkpoint.checkpoint_interval > 0:
            checkpoint_hook = CheckpointHook(
                checkpoint_manager, config.checkpoint.checkpoint_interval, config.checkpoint.wandb_checkpoint_interval
            )
            trainer.add_hook(checkpoint_hook)

        if wandb_run or stats_client or config.verbose:
            metrics_hook = MetricsHook(wandb_run, stats_client, timer, config.verbose)
            trainer.add_hook(metrics_hook)

        if config.evaluation:
            eval_hook = EvaluationHook(config.evaluation, curriculum)
            trainer.add_hook(eval_hook)

        # Run training with clean separation
        trainer.train()
        return trainer, eval_hook

    trainer, eval_hook = train(tmp_path / "run", config)
    trainer.plugins.close()
    assert not trainer.plugins.faults
    assert eval_hook.get_eval_scores().epoch == 1
    names = stats_client.names
    assert names >= {"train/loss", "rollout/steps", "eval/cartpole/mean_reward", "run/completed"}
    saved = safetensors.torch.load_file(trainer.state.latest_checkpoint_path / "policy.safetensors")
    assert {name: value.tolist() for name, value in saved.items()} == weights(trainer)
    assert "encoder.0.weight" in saved


# -- subclasses, as a reader of the document writes them ---------------------------------------------------------------


def saved_epochs(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").glob("epoch-*"))


def run_with(hook: TrainerHook, run_dir: Path, *, epochs: int = 3, resume: bool = False) -> Trainer:
    trainer = Trainer(configuration(epochs, resume, run_dir), None, MLPPolicy(4, Discrete(2), hidden=(8,)))
    trainer.add_hook(hook)
    trainer.train()
    assert not trainer.plugins.faults
    return trainer


def test_the_hook_has_the_documents_base_and_signatures() -> None:
    assert issubclass(CheckpointHook, TrainerHook)
    assert TrainerHook is hookline_hookspecs.TrainerHook
    assert list(inspect.signature(CheckpointHook.on_training_start).parameters) == ["self", "trainer_state"]
    expected = ["self", "policy", "optimizer", "trainer_state", "eval_scores", "wandb_run"]
    assert list(inspect.signature(CheckpointHook.on_epoch_end).parameters) == expected


@pytest.mark.parametrize("by_keyword", [False, True])
def test_an_override_of_on_epoch_end_is_called_and_its_super_saves(tmp_path: Path, by_keyword: bool) -> None:
    class My(CheckpointHook):
        def on_epoch_end(self, policy, optimizer, trainer_state, eval_scores, wandb_run):  # type: ignore[no-untyped-def]
            seen.append((policy is trainer_state.policy, optimizer is trainer_state.optimizer, eval_scores, wandb_run))
            if by_keyword:
                super().on_epoch_end(
                    policy=policy,
                    optimizer=optimizer,
                    trainer_state=trainer_state,
                    eval_scores=eval_scores,
                    wandb_run=wandb_run,
                )
            else:
                super().on_epoch_end(policy, optimizer, trainer_state, eval_scores, wandb_run)

    seen: list[Any] = []
    run_with(My(CheckpointManager(), 1, 0), tmp_path / "run")
    assert seen == [(True, True, hookline_hookspecs.EvalRewardSummary(), None)] * 3
    # Two are kept by default of the three that were saved, and the first of them was not the last.
    assert len(saved_epochs(tmp_path / "run")) > 1


def test_an_override_that_leaves_nothing_to_super_saves_nothing_then(tmp_path: Path) -> None:
    class Never(CheckpointHook):
        def on_epoch_end(self, policy, optimizer, trainer_state, eval_scores, wandb_run):  # type: ignore[no-untyped-def]
            seen.append(saved_epochs(trainer_state.run_dir))

    seen: list[Any] = []
    run_with(Never(CheckpointManager(), 1, 0), tmp_path / "run")
    assert seen == [[], [], []]
    assert saved_epochs(tmp_path / "run") == ["epoch-000002"]  # the end of the run is saved as ever


def test_an_override_may_have_another_policy_saved(tmp_path: Path) -> None:
    class Averaging(CheckpointHook):
        def on_epoch_end(self, policy, optimizer, trainer_state, eval_scores, wandb_run):  # type: ignore[no-untyped-def]
            average = copy.deepcopy(policy)
            for parameter in average.parameters():
                parameter.data.fill_(0.5)
            super().on_epoch_end(average, optimizer, trainer_state, eval_scores, wandb_run)

    trainer = run_with(Averaging(CheckpointManager(), 1, 0), tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "epoch-000002"
    assert trainer.state.latest_checkpoint_path == path
    saved = safetensors.torch.load_file(path / "policy.safetensors")
    assert all(bool((value == 0.5).all()) for value in saved.values())


def test_an_override_of_on_training_start_is_called_once_and_its_super_resumes(tmp_path: Path) -> None:
    class My(CheckpointHook):
        def on_training_start(self, trainer_state):  # type: ignore[no-untyped-def]
            policy = super().on_training_start(trainer_state)
            seen.append((policy is trainer_state.policy, trainer_state.epoch))
            return policy

    seen: list[Any] = []
    run_with(My(CheckpointManager(), 2, 0), tmp_path / "run", epochs=2)
    resumed = run_with(My(CheckpointManager(), 2, 0), tmp_path / "run", epochs=4, resume=True)
    assert seen == [(False, 0), (True, 1)]
    whole = run_with(CheckpointHook(CheckpointManager(), 2, 0), tmp_path / "whole", epochs=4)
    assert weights(resumed) == weights(whole)


class MyEvaluation(EvaluationHook): ...


def test_the_checkpoint_carries_the_scores_of_its_epoch_whatever_the_order_of_hooks(tmp_path: Path) -> None:
    trainer = Trainer(configuration(1, False, tmp_path / "run"), None, MLPPolicy(4, Discrete(2), hidden=(8,)))
    assert trainer.worker is not None
    curriculum = trainer.worker.curriculum
    trainer.add_hook(CheckpointHook(CheckpointManager(), 1, 0))
    trainer.add_hook(MyEvaluation(EvaluationConfig(every=1, n_examples=2, replays=0), curriculum))
    trainer.train()
    saved = json.loads((tmp_path / "run" / "checkpoints" / "epoch-000000" / "state.json").read_text())
    assert "eval/cartpole/mean_reward" in saved["metrics"]
