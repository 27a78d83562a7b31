"""`trainer.add_hook`: a plugin, a `Hook`, or a `TrainerHook` with whatever arguments its methods name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookline import PluginManager, hookimpl
from hookline.errors import HooklineError
from hookline.hooks import CompositeHook, PeriodicHook
from hookline.hooks import EvaluationHook as WorkerEvaluationHook
from hookline.plugin_manager import OrderError, PluginError
from hookline.rollout import Curriculum, CurriculumConfig
from hookline.training import Experience, RolloutConfig, Trainer, TrainerConfig, TrainerHook
from hookline_hookspecs import Emit, EvalRewardSummary, HookContext, TrainerState


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

    with pytest.raises(HooklineError, match="Never runs after rollouts, and this trainer makes none"):
        supervised().add_hook(Never(frequency=1))


class MetricsHook(TrainerHook):
    """The signatures of the design document."""

    def __init__(self, wandb_run: Any) -> None:
        self.wandb_run = wandb_run
        self.seen: list[Any] = []

    def on_rollout_end(self, rollout_stats: Any, trainer_state: Any) -> None:
        self.seen.append(("rollout", rollout_stats["rollout/steps"], trainer_state.epoch))

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
        self.seen.append((type(policy).__name__, type(optimizer).__name__, eval_scores, wandb_run))


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
    assert checkpoint.seen[-1][2:] == (EvalRewardSummary(), run)
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

    with pytest.raises(
        PluginError, match=r"hook 'Misspelt' has a method 'on_epoch_ends', which is not an event \(did you"
    ):
        supervised().add_hook(Misspelt())


def test_an_argument_that_nothing_goes_by_is_an_error_with_the_nearest(supervised: Callable[..., Trainer]) -> None:
    class Curious(TrainerHook):
        def on_epoch_end(self, polcy: Any) -> None: ...

    with pytest.raises(
        PluginError,
        match=r"hook 'Curious': on_epoch_end has an unknown argument 'polcy' \(did you mean 'policy'",
    ):
        supervised().add_hook(Curious())


def test_an_argument_with_a_default_keeps_it_where_there_is_no_other(supervised: Callable[..., Trainer]) -> None:
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


# -- what hooks are asked for ------------------------------------------------------------------------------------------


class Asking(TrainerHook):
    """Notes what it finds at the end of each epoch."""

    def __init__(self) -> None:
        self.found: list[Any] = []


def test_a_hook_is_asked_for_by_its_class_or_a_base_of_it(playing: Callable[..., Trainer]) -> None:
    class My(EvaluationHook): ...

    class Health(PeriodicHook):
        def run(self, context: HookContext) -> None: ...

    class Nurse(Asking):
        def on_epoch_end(self, my: Any, evaluation_hook: Any, health: Any, checkpoint_hook: Any) -> None:
            self.found = [my, evaluation_hook, health, checkpoint_hook]

    trainer = playing(epochs=1)
    mine, health, nurse = My(), Health(frequency=5), Nurse()
    for hook in (WorkerEvaluationHook(frequency=100), mine, health, nurse):
        trainer.add_hook(hook)
    trainer.train()
    assert nurse.found == [mine, mine, health, None]
    assert not trainer.plugins.faults


def test_the_workers_own_evaluation_hook_is_not_the_one_that_trainer_hooks_mean() -> None:
    class Reader(Asking):
        def on_epoch_end(self, evaluation_hook: Any, eval_scores: Any) -> None:
            self.found.append((evaluation_hook, eval_scores))

    trainer = Trainer(TrainerConfig(epochs=1, rollout=RolloutConfig(4, 8, minibatches=2, update_epochs=1)))
    assert trainer.worker is not None
    assert trainer.worker.get_hooks()
    reader = Reader()
    trainer.add_hook(reader)
    trainer.train()
    assert reader.found == [(None, EvalRewardSummary())]


def test_the_scores_are_a_summary_of_the_states_where_no_hook_has_one(supervised: Callable[..., Trainer]) -> None:
    class Reader(Asking):
        def on_epoch_end(self, eval_scores: Any) -> None:
            self.found.append(eval_scores)

    trainer, reader = supervised(epochs=1), Reader()
    trainer.state.eval_scores.update(
        {"eval/one/mean_reward": 0.5, "eval/mean_reward": 0.5, "eval_category/sums/mean_reward": 0.25}
    )
    trainer.state.shared["evaluation"]["epoch"] = 7
    trainer.add_hook(reader)
    trainer.train()
    assert reader.found == [EvalRewardSummary({"one": 0.5}, {"sums": 0.25}, 7)]


def test_the_statistics_of_a_rollout_are_named_as_in_the_state(playing: Callable[..., Trainer]) -> None:
    class Reader(Asking):
        def on_rollout_end(self, rollout_stats: Any) -> None:
            self.found.append(rollout_stats)

        def on_train_phase_end(self, rollout_stats: Any) -> None:
            self.found.append(rollout_stats)

    trainer, reader = playing(epochs=1), Reader()
    trainer.add_hook(reader)
    trainer.train()
    assert reader.found == [trainer.state.rollout_stats] * 2


def test_an_override_with_any_arguments_passes_on_those_of_what_it_overrides(playing: Callable[..., Trainer]) -> None:
    class Counting(CheckpointHook):
        calls = 0

        def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            self.calls += 1
            super().on_epoch_end(*args, **kwargs)

    trainer, hook = playing(epochs=2), Counting()
    trainer.add_hook(hook)
    trainer.train()
    assert hook.calls == len(hook.seen) == 2


def test_the_base_has_the_moments_of_the_documents(supervised: Callable[..., Trainer]) -> None:
    class Polite(TrainerHook):
        def on_epoch_end(self, policy: Any, trainer_state: TrainerState) -> None:
            super().on_epoch_end(policy, trainer_state=trainer_state)
            trainer_state.shared["polite"]["epochs"] = trainer_state.epoch + 1

    trainer = supervised(epochs=2)
    trainer.add_hook(Polite())
    assert trainer.train().shared["polite"] == {"epochs": 2}
    assert TrainerHook().on_training_start(trainer.state) is None
    for moment in ("on_new_training_run", "on_rollout_start", "on_rollout_end", "on_mb_end", "on_train_phase_end"):
        assert getattr(TrainerHook(), moment)() is None


# -- options of plugins ------------------------------------------------------------------------------------------------


def test_a_marked_method_is_called_as_on_a_plugin(supervised: Callable[..., Trainer]) -> None:
    class Marked(Asking):
        @hookimpl(every=2)
        def post_training_step(self, trainer_state: TrainerState) -> None:
            self.found.append(("step", trainer_state.step))

        @hookimpl(specname="on_epoch_end", every=3)
        def third(self, state: TrainerState) -> None:
            self.found.append(("epoch", state.epoch))

    trainer, hook = supervised(epochs=4, batch_size=8), Marked()
    trainer.add_hook(hook)
    trainer.train()
    assert [count for what, count in hook.found if what == "step"] == [2, 4]
    assert len([count for what, count in hook.found if what == "epoch"]) == 1


def test_order_and_requirements_of_trainer_hooks_are_kept(supervised: Callable[..., Trainer]) -> None:
    seen = []

    class Named(TrainerHook):
        def on_epoch_end(self) -> None:
            seen.append(type(self).__name__)

    class Last(Named):
        @hookimpl(trylast=True)
        def on_epoch_end(self) -> None:
            super().on_epoch_end()

    class Early(Named):
        before = ("Named",)

    class Needy(Named):
        requires = ("Early",)

    trainer = supervised(epochs=1)
    with pytest.raises(OrderError, match="plugin 'Needy' requires 'Early', which is not registered"):
        trainer.add_hook(Needy())
    for cls in (Last, Named, Early, Needy):
        trainer.add_hook(cls())
    trainer.train()
    assert seen == ["Early", "Named", "Needy", "Last"]


def test_an_async_method_runs_in_the_background_with_a_frozen_state(supervised: Callable[..., Trainer]) -> None:
    class Uploading(Asking):
        async def on_epoch_end(self, trainer_state: TrainerState, losses_stats: Any) -> None:
            self.found.append((threading.current_thread().name, type(trainer_state).__name__, set(losses_stats)))

    trainer, hook = supervised(epochs=1), Uploading()
    trainer.add_hook(hook)
    trainer.train()
    trainer.plugins.close()
    ((thread, state, losses),) = hook.found
    assert (thread, state) == ("hookline-Uploading", "_FrozenTrainerState")
    assert "train/loss" in losses


# -- adding and removing -----------------------------------------------------------------------------------------------


def test_hooks_can_be_swapped(playing: Callable[..., Trainer]) -> None:
    class Named(Asking):
        def on_epoch_end(self, epoch: int) -> None:
            self.found.append(epoch)

    class Other(Named): ...

    first, second, third, other = Named(), Named(), Named(), Other()

    class Swapping(TrainerHook):
        def on_epoch_start(self, epoch: int) -> None:
            if epoch == 1:
                assert trainer.remove_hook(first)
                trainer.add_hook(second)
            if epoch == 2:
                trainer.plugins.unregister(name="Named")
                trainer.add_hook(third)

    trainer = playing(epochs=3)
    for hook in (first, other, Swapping()):
        trainer.add_hook(hook)
    trainer.train()
    assert not trainer.plugins.faults
    assert (first.found, second.found, third.found, other.found) == ([0], [1], [2], [0, 1, 2])
    assert not trainer.remove_hook(first)
    trainer.add_hook(first)  # what was removed can be added again


def test_hooks_of_every_style_can_be_removed(playing: Callable[..., Trainer]) -> None:
    seen = []

    class Plugin:
        @hookimpl
        def on_epoch_end(self) -> None:
            seen.append(self)

    class Periodic(PeriodicHook):
        def run(self, context: HookContext) -> None:
            seen.append(self)

    trainer = playing(epochs=1)
    for hook in (Plugin(), CompositeHook([Periodic(1), Periodic(1)])):
        trainer.add_hook(hook)
        with pytest.raises(HooklineError, match="already"):
            trainer.add_hook(hook)
        assert trainer.remove_hook(hook)
        assert not trainer.remove_hook(hook)
    trainer.train()
    assert seen == []


def test_a_trainer_hook_twice_is_an_error(supervised: Callable[..., Trainer]) -> None:
    trainer, hook = supervised(), Asking()
    trainer.add_hook(hook)
    with pytest.raises(HooklineError, match="was added already, as 'Asking': it would be called twice"):
        trainer.add_hook(hook)


def test_what_is_no_hook_is_refused_with_what_was_expected(supervised: Callable[..., Trainer]) -> None:
    class Forgetful:
        def on_epoch_end(self) -> None: ...

    trainer = supervised()
    for wrong in (Forgetful(), None, "hook", print):
        with pytest.raises(
            HooklineError, match=r"would never be called: a hook is a plugin, .* @hookimpl, .*TrainerHo"
        ):
            trainer.add_hook(wrong)
    for cls in (Asking, PeriodicHook):
        with pytest.raises(HooklineError, match=f"{cls.__name__} is a class: add an instance of it"):
            trainer.add_hook(cls)


def test_a_trainer_hook_is_not_taken_for_a_plugin(hookline_manager: PluginManager) -> None:
    with pytest.raises(PluginError, match=r"'Asking' is a TrainerHook: add it by trainer.add_hook"):
        hookline_manager.register(Asking())


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
