"""The metrics plugin in real runs: with the trainer and its curriculum, and in the older style."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from hookline import PluginManager
from hookline.hooks import MetricsHook as WorkerMetricsHook
from hookline.rollout import Curriculum, CurriculumConfig, Lesson
from hookline.training import RolloutConfig, SupervisedConfig, Trainer, TrainerConfig, TrainerHook
from hookline_metrics import Metrics, MetricsHook, Options
from hookline_metrics.run_reader import RunReader

SMALL = RolloutConfig(num_environments=4, steps_per_rollout=32, minibatches=2, update_epochs=1)


def read(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "stats.sqlite")) as connection:
        return connection.execute(query).fetchall()


def test_a_run_with_a_curriculum_leaves_all_that_its_report_shows(tmp_path: Path) -> None:
    # Lessons that any policy passes, so that the first graduates and unlocks the second.
    easy = {"success_above": 1.0, "plateau_window": 2, "plateau_tolerance": 1.0}
    curriculum = CurriculumConfig(
        lessons=[Lesson("standing", **easy), Lesson("walking", dependencies={"standing": 0.5}, **easy)],
        micro_eval_frequency=None,
        eval_frequency=2,
        eval_n_examples=2,
    )
    with PluginManager() as plugins:
        plugins.register(Metrics(Options(progress="off", gradients_every=2), plugins.emit), "metrics")
        config = TrainerConfig(epochs=20, run_dir=tmp_path, rollout=SMALL)
        Trainer(config, curriculum, plugins=plugins).train()
        assert not plugins.faults
    with RunReader(tmp_path) as run:
        assert run.state == "finished"
        graduated = run.series("curriculum/standing/graduated").steps
        unlocked = run.series("curriculum/walking/unlocked").steps
        assert len(graduated) == len(unlocked) == 1
        assert run.series("curriculum/standing/unlocked").steps == [0]
        assert run.series("eval/walking/success_rate").steps
        assert set(run.names) >= {
            "train/loss",
            "rollout/mean_reward",
            "gradients/norm",
            "gradients/actor.0/variance",
            "time/rollout_share",
            "time/train_share",
            "time/evaluation",
            "rate/agent_steps_per_second",
            "curriculum/standing/success",
        }
        looked_at = run.series("gradients/norm").steps
        assert looked_at == list(range(2, 2 * len(looked_at) + 1, 2))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"standing: unlocked at step 0, graduated at step {graduated[0]}" in page


def test_gradient_statistics_are_those_of_the_tensors(tmp_path: Path) -> None:
    import torch

    from hookline_metrics.measurements import gradient_statistics

    policy = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    policy(torch.randn(5, 3)).square().sum().backward()
    first = torch.cat([parameter.grad.reshape(-1) for parameter in policy[0].parameters()])
    every = torch.cat([parameter.grad.reshape(-1) for parameter in policy.parameters()])
    statistics = gradient_statistics(policy)
    assert statistics["gradients/0/norm"] == pytest.approx(first.norm().item(), rel=1e-5)
    assert statistics["gradients/0/variance"] == pytest.approx(first.var(correction=0).item(), rel=1e-4)
    assert statistics["gradients/norm"] == pytest.approx(every.norm().item(), rel=1e-5)


def test_what_hooks_log_to_the_workers_tracker_is_in_the_database(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PluginManager() as plugins:
        plugins.register(Metrics(Options(progress="off"), plugins.emit), "metrics")
        curriculum = CurriculumConfig(micro_eval_frequency=2, micro_eval_n_examples=2, eval_frequency=None)
        trainer = Trainer(TrainerConfig(epochs=3, run_dir=tmp_path, rollout=SMALL), curriculum, plugins=plugins)
        trainer.add_hook(WorkerMetricsHook(2, lambda context: {"mine/step": context.step, "mine/name": "no number"}))
        trainer.worker.tracker.log({"rollout/before": 1.5}, step=0)
        trainer.train()
        assert not plugins.faults
    assert read(tmp_path, "SELECT epoch, value FROM metrics WHERE name = 'mine/step'") == [(1, 2.0)]
    assert read(tmp_path, "SELECT epoch, value FROM metrics WHERE name = 'rollout/before'") == [(0, 1.5)]
    assert read(tmp_path, "SELECT count(*) FROM metrics WHERE name = 'rollout/cartpole/steps'") == [(3,)]
    assert read(tmp_path, "SELECT count(*) FROM metrics WHERE name = 'micro_eval/cartpole/mean_reward'") == [(1,)]
    assert "claimed" not in caplog.text


# -- the document's MetricsHook -----------------------------------------------------------------------------------


class WandbRun:
    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.logged.append((dict(numbers), step))


class Client:
    def __init__(self) -> None:
        self.recorded: list[tuple[int, int | None, dict[str, float]]] = []

    def record(self, step: int, epoch: int | None, numbers: Mapping[str, float]) -> None:
        self.recorded.append((step, epoch, dict(numbers)))


class Stopwatch:
    def get_all_elapsed(self) -> dict[str, float]:
        return {"rollout": 1.5}


@dataclass
class Config(TrainerConfig):
    verbose: bool = True
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)


def train(run_dir: Path, config: Config, wandb_run: Any, stats_client: Any, timer: Any, also: Any) -> Trainer:
    """The example of the document, as far as it is about metrics."""
    curriculum = Curriculum(config.curriculum)
    trainer = Trainer(config, curriculum)
    if wandb_run or stats_client or config.verbose:
        metrics_hook = MetricsHook(wandb_run, stats_client, timer, config.verbose)
        trainer.add_hook(metrics_hook)
    trainer.add_hook(also)
    trainer.train()
    return trainer


class EvaluationHook(TrainerHook):
    """Asks for what the document's evaluation asks for."""

    def on_epoch_end(self, trainer_state: Any, stats_client: Any, wandb_run: Any) -> None:
        self.found = stats_client, wandb_run, trainer_state.shared["metrics"]["wandb_run"]


def test_the_hook_of_the_document_feeds_what_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, client, evaluation = WandbRun(), Client(), EvaluationHook()
    config = Config(epochs=2, run_dir=tmp_path, rollout=SMALL)
    trainer = train(tmp_path, config, run, client, Stopwatch(), evaluation)
    trainer.plugins.close()
    assert not trainer.plugins.faults
    sent: dict[str, float] = {}
    for numbers, _ in run.logged:
        sent |= numbers
    assert sent["timer/rollout"] == 1.5
    assert sent.keys() >= {"train/loss", "rollout/steps", "time/train_share", "run/completed"}
    assert run.logged[-1][1] == trainer.state.step == 4
    losses = [(step, numbers["train/loss"]) for step, _, numbers in client.recorded if "train/loss" in numbers]
    assert [step for step, _ in losses] == [1, 2, 3, 4]
    assert "epoch 2/2 · step 4/4" in capsys.readouterr().err
    assert (tmp_path / "heartbeat").exists()
    assert not (tmp_path / "stats.sqlite").exists()
    assert evaluation.found == (client, run, run)


def test_the_hook_is_silent_and_needs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(TrainerConfig(epochs=1, rollout=SMALL))
    trainer.add_hook(MetricsHook(None, None, None, verbose=False))
    trainer.train()
    trainer.plugins.close()
    assert not trainer.plugins.faults
    assert capsys.readouterr().err == ""


def epochs_reported(hook: MetricsHook, run_dir: Path) -> list[dict[str, float]]:
    """What the hook's client was told at the ends of three epochs."""
    client = hook.stats_client
    assert isinstance(client, Client)
    trainer = Trainer(TrainerConfig(epochs=3, run_dir=run_dir, rollout=SMALL))
    trainer.add_hook(hook)
    trainer.train()
    trainer.plugins.close()
    assert not trainer.plugins.faults
    return [numbers for _, _, numbers in client.recorded if "timer/rollout" in numbers]


def test_the_hook_has_the_documents_base_and_signatures() -> None:
    assert issubclass(MetricsHook, TrainerHook)
    assert list(inspect.signature(MetricsHook.on_rollout_end).parameters) == ["self", "rollout_stats", "trainer_state"]
    expected = ["self", "losses_stats", "experience", "policy", "optimizer", "trainer_state"]
    assert list(inspect.signature(MetricsHook.on_epoch_end).parameters) == expected


def test_overrides_of_the_hook_are_called_and_their_supers_report(tmp_path: Path) -> None:
    class My(MetricsHook):
        def on_rollout_end(self, rollout_stats, trainer_state):  # type: ignore[no-untyped-def]
            super().on_rollout_end({**rollout_stats, "rollout/mine": 7.0}, trainer_state)

        def on_epoch_end(self, losses_stats, experience, policy, optimizer, trainer_state):  # type: ignore[no-untyped-def]
            losses_stats = {**losses_stats, "train/mine": float(trainer_state.epoch)}
            super().on_epoch_end(losses_stats, experience, policy, optimizer, trainer_state=trainer_state)

    reported = epochs_reported(My(None, Client(), Stopwatch(), verbose=False), tmp_path)
    assert [numbers["train/mine"] for numbers in reported] == [0.0, 1.0, 2.0]
    assert [numbers["rollout/mine"] for numbers in reported] == [7.0] * 3
    assert all(numbers["rollout/steps"] > 0 for numbers in reported)


def test_overrides_of_the_hook_that_leave_nothing_to_super_report_nothing(tmp_path: Path) -> None:
    class NoRollouts(MetricsHook):
        def on_rollout_end(self, rollout_stats, trainer_state): ...  # type: ignore[no-untyped-def]

    class NoEpochs(MetricsHook):
        def on_epoch_end(self, losses_stats, experience, policy, optimizer, trainer_state): ...  # type: ignore[no-untyped-def]

    reported = epochs_reported(NoRollouts(None, Client(), Stopwatch(), verbose=False), tmp_path / "one")
    assert len(reported) == 3
    assert not any("rollout/steps" in numbers for numbers in reported)
    reported = epochs_reported(NoEpochs(None, Client(), Stopwatch(), verbose=False), tmp_path / "two")
    assert len(reported) == 1  # the end of the run


# -- supervised runs ----------------------------------------------------------------------------------------------


def test_a_supervised_run_has_its_validations(tmp_path: Path) -> None:
    from hookline.policies import TransformerPolicy

    examples = [{"tokens": [2 + (i * k) % 7 for k in range(4)]} for i in range(1, 9)]
    policy = TransformerPolicy(vocabulary=10, width=16, layers=1, heads=2, context=8)
    with PluginManager() as plugins:
        plugins.register(Metrics(Options(progress="off"), plugins.emit), "metrics")
        config = TrainerConfig(epochs=2, run_dir=tmp_path, supervised=SupervisedConfig(batch_size=4, validate_every=1))
        Trainer(config, policy=policy, dataset=examples, validation_dataset=examples, plugins=plugins).train()
        assert not plugins.faults
    assert read(tmp_path, "SELECT step FROM metrics WHERE name = 'val_avg_loss'") == [(1,), (2,), (3,), (4,)]
    assert read(tmp_path, "SELECT count(*) FROM metrics WHERE name = 'time/validation' AND value > 0") == [(2,)]
    assert "Validation loss · val_avg_loss" in (tmp_path / "report.html").read_text(encoding="utf-8")
