"""`trainer.add_hook`: a plugin, a `Hook`, or a `TrainerHook` with whatever arguments its methods name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookline import hookimpl
from hookline.hooks import PeriodicHook
from hookline.plugins import PluginError
from hookline.rollout import Curriculum, CurriculumConfig
from hookline.training import Experience, RolloutConfig, Trainer, TrainerConfig, TrainerHook
from hookline.training.errors import TrainingError
from hookline_hookspecs import Emit, HookContext, TrainerState


def test_a_plugin_is_a_hook(supervised: Callable[..., Trainer]) -> None:
    class Counter:
        steps = 0

        @hookimpl
        def post_training_step(self, report_data: dict[str, Any]) -> None:
            self.steps += 1

    counter = Counter()
    trainer = supervised()
    trainer.add_hook(counter)
    trainer.train()
    assert counter.steps == 4


def test_a_hook_of_the_rollout_worker_is_asked_after_rollouts(playing: Callable[..., Trainer]) -> None:
    class Second(PeriodicHook):
        steps: list[int]

        def run(self, context: HookContext) -> None:
            self.steps.append(context.step)

    hook = Second(frequency=2)
    hook.steps = []
    trainer = playing(epochs=5)
    trainer.add_hook(hook)
    trainer.train()
    assert hook.steps == [2, 4]


def test_a_hook_of_rollouts_is_an_error_where_there_are_none(supervised: Callable[..., Trainer]) -> None:
    class Never(PeriodicHook):
        def run(self, context: HookContext) -> None: ...

    with pytest.raises(TrainingError, match="Never is asked after rollouts, and this trainer makes none"):
        supervised().add_hook(Never(frequency=1))


class MetricsHook(TrainerHook):
    """The signatures of the design document."""

    def __init__(self, wandb_run: Any) -> None:
        self.wandb_run = wandb_run
        self.seen: list[Any] = []

    def on_rollout_end(self, rollout_stats: Any, trainer_state: Any) -> None:
        self.seen.append(("rollout", rollout_stats["steps"], trainer_state.epoch))

    def on_epoch_end(self, losses_stats: Any, experience: Any, policy: Any, optimizer: Any, trainer_state: Any) -> None:
        assert isinstance(experience, Experience)
        assert policy is trainer_state.policy
        assert optimizer is trainer_state.optimizer
        self.seen.append(("epoch", losses_stats["train/loss"], trainer_state.epoch))


class CheckpointHook(TrainerHook):
    def __init__(self, loaded: Any = None) -> None:
        self.loaded = loaded
        self.latest_wandb_uri: str | None = None
        self.seen: list[Any] = []

    def on_training_start(self, trainer_state: Any) -> Any:
        assert trainer_state.epoch == 0
        return self.loaded

    def on_epoch_end(self, policy: Any, optimizer: Any, trainer_state: Any, eval_scores: Any, wandb_run: Any) -> None:
        self.latest_wandb_uri = f"wandb://epoch-{trainer_state.epoch}"
        self.seen.append((type(policy).__name__, type(optimizer).__name__, dict(eval_scores), wandb_run))


class EvaluationHook(TrainerHook):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_epoch_end(self, checkpoint_hook: Any, trainer_state: Any, stats_client: Any, wandb_run: Any) -> None:
        trainer_state.eval_scores["cartpole"] = float(trainer_state.epoch)
        self.seen.append((checkpoint_hook, stats_client, wandb_run))


def test_the_signatures_of_the_design_are_served_by_name(playing: Callable[..., Trainer]) -> None:
    run = object()
    metrics, checkpoint, evaluation = MetricsHook(run), CheckpointHook(), EvaluationHook()
    trainer = playing(epochs=2)
    for hook in (metrics, checkpoint, evaluation):
        trainer.add_hook(hook)
    trainer.train()
    assert not trainer.plugins.faults
    assert [entry[0] for entry in metrics.seen] == ["rollout", "epoch"] * 2
    assert metrics.seen[0] == ("rollout", 32.0, 0)
    assert [entry[2] for entry in metrics.seen] == [0, 0, 1, 1]
    assert [entry[:2] for entry in checkpoint.seen] == [("ActorCritic", "FlatAdam")] * 2
    assert checkpoint.seen[-1][3] is run
    assert evaluation.seen == [(checkpoint, None, run)] * 2
    assert trainer.state.eval_scores == {"cartpole": 1.0}


def test_the_audits_signatures_are_served_as_well(playing: Callable[..., Trainer]) -> None:
    class Corrected(TrainerHook):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_new_training_run(self, trainer_state: TrainerState) -> None:
            self.seen.append("new run")

        def on_train_phase_end(self, trainer_state: TrainerState) -> None:
            self.seen.append(f"phase with {trainer_state.rollout_stats['rollout/steps']:g} steps")

        def on_mb_end(self, trainer_state: TrainerState) -> None:
            self.seen.append(f"minibatch {trainer_state.step}")

        def on_epoch_end(self, trainer_state: TrainerState) -> None:
            self.seen.append(f"epoch {trainer_state.epoch}")

    hook = Corrected()
    trainer = playing(epochs=1)
    trainer.add_hook(hook)
    trainer.train()
    assert hook.seen == ["new run", "minibatch 1", "minibatch 2", "phase with 32 steps", "epoch 0"]


@pytest.mark.parametrize("as_weights", [False, True])
def test_a_policy_that_a_hook_returns_at_the_start_is_gone_on_with(
    supervised: Callable[..., Trainer], as_weights: bool
) -> None:
    earlier = supervised(epochs=1)
    earlier.train()
    given = earlier.policy.state_dict() if as_weights else earlier.policy
    seen = []

    class First(TrainerHook):
        def on_train_phase_start(self, policy: Any) -> None:
            seen.append(policy.norm.weight.clone())

    trainer = supervised(epochs=1)
    trainer.add_hook(CheckpointHook(loaded=given))
    trainer.add_hook(First())
    trainer.train()
    assert torch.equal(seen[0], earlier.policy.norm.weight)
    assert trainer.policy is not earlier.policy


def test_hooks_are_called_in_the_order_in_which_they_were_added(supervised: Callable[..., Trainer]) -> None:
    seen = []

    class Named(TrainerHook):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_epoch_end(self) -> None:
            seen.append(self.name)

    trainer = supervised(epochs=1)
    for name in ("checkpoint", "metrics", "evaluation"):
        trainer.add_hook(Named(name))
    trainer.train()
    assert seen == ["checkpoint", "metrics", "evaluation"]


def test_a_method_that_is_no_event_is_an_error_with_the_nearest(supervised: Callable[..., Trainer]) -> None:
    class Misspelt(TrainerHook):
        def on_epoch_ends(self, trainer_state: TrainerState) -> None: ...

    with pytest.raises(PluginError, match=r"hook 'Misspelt' has a method 'on_epoch_ends', which is no event \(did you"):
        supervised().add_hook(Misspelt())


def test_an_argument_that_nothing_goes_by_is_an_error_with_the_nearest(supervised: Callable[..., Trainer]) -> None:
    class Curious(TrainerHook):
        def on_epoch_end(self, polcy: Any) -> None: ...

    with pytest.raises(
        PluginError,
        match=r"hook 'Curious': on_epoch_end asks for 'polcy', which nothing goes by \(did you mean 'policy'",
    ):
        supervised().add_hook(Curious())


def test_an_argument_with_a_default_keeps_it_where_nobody_has_another(supervised: Callable[..., Trainer]) -> None:
    seen = []

    class Modest(TrainerHook):
        def on_epoch_end(self, epoch: int, verbosity: int = 3) -> None:
            seen.append((epoch, verbosity))

    trainer = supervised(epochs=1)
    trainer.add_hook(Modest())
    trainer.train()
    assert seen == [(0, 3)]


def test_a_hook_may_announce_events_of_its_own(supervised: Callable[..., Trainer]) -> None:
    class Announcer(TrainerHook):
        heard: dict[str, float] | None = None

        def on_training_complete(self, state: TrainerState, emit: Emit) -> None:
            emit.on_evaluation_end(state=state, scores={"x": 0.5})

        def on_evaluation_end(self, scores: dict[str, float]) -> None:
            self.heard = scores

    announcer = Announcer()
    trainer = supervised()
    trainer.add_hook(announcer)
    trainer.train()
    assert announcer.heard == {"x": 0.5}


def test_a_hook_that_raises_is_treated_by_its_error_policy(supervised: Callable[..., Trainer]) -> None:
    class Broken(TrainerHook):
        def on_epoch_end(self) -> None:
            raise RuntimeError("no")

    class Critical(Broken):
        critical = True

    trainer = supervised()
    trainer.add_hook(Broken())
    trainer.train()
    assert trainer.plugins.faults.failures_of("Broken") == 2
    trainer.add_hook(Critical())
    with pytest.raises(RuntimeError, match="no"):
        trainer.train()


# -- the example of the design document, with its names as they stand ------------------------------------------------


@dataclass
class Config(TrainerConfig):
    """A config that carries what the example asks for besides training."""

    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    checkpoint: Any = field(default_factory=lambda: SimpleNamespace(checkpoint_interval=1, wandb_checkpoint_interval=0))
    evaluation: Any = "evaluate"
    verbose: bool = True


def test_the_example_of_the_design_document_runs() -> None:
    config = Config(epochs=1, rollout=RolloutConfig(4, 8, minibatches=2, update_epochs=1))
    curriculum = Curriculum(config.curriculum)
    policy = None
    trainer = Trainer(config, curriculum, policy)
    wandb_run = stats_client = None

    if config.checkpoint.checkpoint_interval > 0:
        checkpoint_hook = CheckpointHook()
        trainer.add_hook(checkpoint_hook)

    if wandb_run or stats_client or config.verbose:
        metrics_hook = MetricsHook(wandb_run)
        trainer.add_hook(metrics_hook)

    if config.evaluation:
        eval_hook = EvaluationHook()
        trainer.add_hook(eval_hook)

    trainer.train()
    assert checkpoint_hook.seen
    assert metrics_hook.seen
    assert eval_hook.seen
    assert curriculum is trainer.worker.curriculum
