"""What plugins are told of a run of stable-baselines3, and what they can do to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from hookline import hookimpl
from hookline.errors import HooklineError
from hookline.testing import check_emitter
from hookline_hookspecs import HookContext, Rollout, TrainerState
from hookline_sb3 import HooklineCallback


def train(models: ModuleType, model: Any, timesteps: int, *plugins: object, **options: Any) -> Any:
    named = {f"own-{number}": plugin for number, plugin in enumerate(plugins)}
    with HooklineCallback(plugins=named, settings=models.only(), **options) as hookline:
        model.learn(timesteps, callback=hookline)
    return model


def test_every_algorithm_keeps_the_event_contract(models: ModuleType, algorithm: str) -> None:
    check_emitter(lambda plugin: train(models, models.make_model(algorithm), 40, plugin))


def test_training_is_bit_identical_with_and_without_the_callback(models: ModuleType, algorithm: str) -> None:
    plain = models.make_model(algorithm).learn(64)
    with HooklineCallback(
        settings=models.only(evaluation={"every": 1, "n_examples": 2}),
        eval_env=models.Line(discrete=models.ALGORITHMS[algorithm][1]),
    ) as hookline:
        watched = models.make_model(algorithm).learn(64, callback=hookline)
    assert models.weights_of(watched) == models.weights_of(plain)


class Gradients:
    """Looks at the gradients in `on_mb_end`, and at what the optimizer makes of the weights."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.changes: list[float] = []

    @hookimpl
    def on_mb_end(self, state: TrainerState) -> None:
        optimizer = state.optimizer["critic"] if isinstance(state.optimizer, Mapping) else state.optimizer
        self._parameters = [own for group in optimizer.param_groups for own in group["params"]]
        self._before = [own.detach().clone() for own in self._parameters]
        self.norms.append(sum(float(own.grad.norm()) for own in self._parameters))

    @hookimpl
    def post_training_step(self) -> None:
        pairs = zip(self._parameters, self._before, strict=True)
        self.changes.append(sum(float((own.detach() - before).abs().sum()) for own, before in pairs))


def test_gradients_are_alive_when_a_minibatch_ends_and_the_step_follows(models: ModuleType, algorithm: str) -> None:
    gradients = Gradients()
    train(models, models.make_model(algorithm), 32, gradients)
    assert len(gradients.norms) == len(gradients.changes) > 1
    assert all(norm > 0 for norm in gradients.norms)
    assert all(change > 0 for change in gradients.changes)


class Record:
    """What a run was at each of its epochs' ends, its rollouts and its numbers."""

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int, int]] = []
        self.totals: list[int | None] = []
        self.rollouts: list[tuple[int, Rollout]] = []
        self.numbers: list[tuple[int, Mapping[str, float]]] = []
        self.loss_stats: list[Mapping[str, float]] = []
        self.rollout_stats: list[Mapping[str, float]] = []

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        self.epochs.append((state.epoch, state.step, state.agent_step))
        self.totals.append(state.total_epochs)
        self.loss_stats.append(dict(state.loss_stats))
        self.rollout_stats.append(dict(state.rollout_stats))

    @hookimpl
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self.rollouts.append((context.step, rollout))

    @hookimpl
    def log_metrics(self, report_data: Mapping[str, float], step: int) -> None:
        self.numbers.append((step, dict(report_data)))

    def steps_of(self, name: str) -> list[int]:
        return [step for step, numbers in self.numbers if name in numbers]


STEPS_PER_UPDATE = {"PPO": 4, "A2C": 1, "DQN": 4, "SAC": 4, "TD3": 4}


def test_an_epoch_is_a_rollout_and_its_update(models: ModuleType, algorithm: str) -> None:
    record = Record()
    model = train(models, models.make_model(algorithm), 32, record)
    # Off-policy algorithms have nothing to learn from in the first epoch.
    updates = range(1, 5) if algorithm in ("PPO", "A2C") else range(4)
    assert record.epochs == [
        (epoch, update * STEPS_PER_UPDATE[algorithm], 8 * (epoch + 1)) for epoch, update in enumerate(updates)
    ]
    assert record.totals == [4, 4, 4, 4]
    if algorithm in ("DQN", "SAC", "TD3"):
        assert record.epochs[-1][1] == model._n_updates


def test_episodes_of_a_rollout_have_their_returns_and_lengths(models: ModuleType) -> None:
    record = Record()
    model = train(models, models.make_model("PPO", n_steps=16, batch_size=8), 32, record)
    steps, (first, second) = zip(*record.rollouts, strict=True)
    assert steps == (1, 2)
    assert (first.weights_version, second.weights_version) == (0, 4)
    assert [own.metadata["length"] for own in first.episodes] == [8, 8]
    returns = [own.reward for own in (*first.episodes, *second.episodes)]
    assert returns == pytest.approx([own["r"] for own in model.ep_info_buffer])
    assert first.arrays["observations"].shape == (16, 1, 2)
    assert record.rollout_stats[1] == {
        "rollout/steps": 16.0,
        "rollout/episodes": 2.0,
        "rollout/mean_reward": pytest.approx(sum(returns[2:]) / 2),
        "rollout/mean_length": 8.0,
    }


def test_a_rollout_in_which_no_episode_ends_has_no_mean_return(models: ModuleType) -> None:
    record = Record()
    train(models, models.make_model("DQN", train_freq=4), 8, record)
    assert "rollout/mean_reward" not in record.rollout_stats[0]
    assert record.rollout_stats[1]["rollout/mean_length"] == 8.0


def test_numbers_of_the_logger_go_to_the_step_they_belong_to(models: ModuleType) -> None:
    record = Record()
    train(models, models.make_model("PPO"), 24, record)
    # The logger is dumped after each rollout, before its update; the last update is never dumped.
    assert record.steps_of("train/loss") == [4, 8, 12]
    assert record.steps_of("rollout/ep_rew_mean") == [0, 4, 8]
    assert record.steps_of("time/total_timesteps") == [0, 4, 8]
    logged = [numbers["train/value_loss"] for _, numbers in record.numbers if "train/value_loss" in numbers]
    assert [stats["train/value_loss"] for stats in record.loss_stats] == logged


def test_numbers_that_another_callback_records_are_reported(models: ModuleType) -> None:
    class Own(BaseCallback):
        def _on_step(self) -> bool:
            self.logger.record("own/number", self.num_timesteps)
            self.logger.record("own/text", "no number")
            return True

    record = Record()
    with HooklineCallback(plugins={"record": record}, settings=models.only()) as hookline:
        models.make_model("PPO").learn(16, callback=[Own(), hookline])
    assert [numbers["own/number"] for _, numbers in record.numbers if "own/number" in numbers] == [8.0, 16.0]
    assert not record.steps_of("own/text")


class StopAt:
    def __init__(self, event: str, epoch: int) -> None:
        self.event, self.epoch = event, epoch

    def _look(self, event: str, state: TrainerState) -> None:
        if (event, state.epoch) == (self.event, self.epoch):
            state.stop_reason = "enough"

    @hookimpl
    def on_epoch_start(self, state: TrainerState) -> None:
        self._look("on_epoch_start", state)

    @hookimpl
    def post_training_step(self, state: TrainerState) -> None:
        self._look("post_training_step", state)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        self._look("on_epoch_end", state)


@pytest.mark.parametrize("event", ["on_epoch_start", "post_training_step", "on_epoch_end"])
def test_a_plugin_that_wants_the_run_to_stop_makes_the_current_epoch_the_last(models: ModuleType, event: str) -> None:
    record = Record()
    train(models, models.make_model("PPO"), 800, record, StopAt(event, epoch=2))
    assert record.epochs == [(0, 4, 8), (1, 8, 16), (2, 12, 24)]


def test_another_callback_that_ends_learning_ends_the_run_as_a_complete_one(models: ModuleType) -> None:
    class Enough(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < 20

    record = Record()
    with HooklineCallback(plugins={"record": record}, settings=models.only()) as hookline:
        models.make_model("PPO").learn(800, callback=[Enough(), hookline])
    assert record.epochs == [(0, 4, 8), (1, 8, 16), (2, 8, 20)]
    # The last rollout was cut off: it has what there is of it, and nothing of the one before.
    assert [rollout.stats["steps"] for _, rollout in record.rollouts] == [8, 8, 4]
    assert record.rollout_stats[-1] == {"rollout/steps": 4.0, "rollout/episodes": 0.0}
    assert record.rollouts[-1][1].arrays == {}


def test_a_run_may_go_on_in_another_call_of_learn(models: ModuleType) -> None:
    record = Record()
    model = models.make_model("PPO")
    with HooklineCallback(plugins={"record": record}, settings=models.only()) as hookline:
        model.learn(16, callback=hookline)
        model.learn(16, callback=hookline, reset_num_timesteps=False)
        with pytest.raises(HooklineError, match="call it with reset_num_timesteps=False"):
            model.learn(16, callback=hookline)
    assert record.epochs == [(0, 4, 8), (1, 8, 16), (2, 12, 24), (3, 16, 32)]
    assert record.totals == [2, 2, 4, 4]


def test_a_callback_outside_of_a_with_block_says_what_to_write(models: ModuleType) -> None:
    with pytest.raises(HooklineError, match=r"with HooklineCallback\(\.\.\.\) as hookline"):
        models.make_model("PPO").learn(16, callback=HooklineCallback())


def test_a_learn_that_was_not_given_the_callback_is_warned_of(
    models: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with HooklineCallback(settings=models.only()):
        models.make_model("PPO").learn(16)
    assert "no run was recorded: learn() was not given this callback" in caplog.text


def test_nothing_of_the_run_is_left_at_the_model(models: ModuleType) -> None:
    model = train(models, models.make_model("PPO"), 16)
    steps = len(model.policy.optimizer._optimizer_step_pre_hooks)
    assert (steps, [type(own).__name__ for own in model.logger.output_formats]) == (0, [])


class Broken:
    @hookimpl
    def on_mb_end(self) -> None:
        raise RuntimeError("broken on purpose")

    @hookimpl
    def on_rollout_end(self) -> None:
        raise RuntimeError("broken on purpose")


def test_a_broken_plugin_stops_neither_the_host_nor_nine_others(
    models: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = models.make_model("PPO").learn(32)
    records = [Record() for _ in range(9)]
    model = train(models, models.make_model("PPO"), 32, Broken(), *records)
    assert all(len(record.epochs) == 4 for record in records)
    assert models.weights_of(model) == models.weights_of(plain)
    assert "RuntimeError: broken on purpose" in " ".join(capsys.readouterr().err.split())


def test_an_exception_in_the_middle_is_a_failed_run_for_plugins(models: ModuleType) -> None:
    class Failing(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 12:
                raise OSError("the simulator is gone")
            return True

    class Ends:
        seen: list[object] = []  # noqa: RUF012 - of this one run

        @hookimpl
        def on_training_failed(self, error: BaseException) -> None:
            self.seen.append(error)

        @hookimpl
        def on_training_complete(self) -> None:
            self.seen.append("complete")

    model, ends = models.make_model("PPO"), Ends()
    with (
        pytest.raises(OSError, match="the simulator is gone") as raised,
        HooklineCallback(plugins={"ends": ends}, settings=models.only()) as hookline,
    ):
        model.learn(64, callback=[hookline, Failing()])
    assert ends.seen == [raised.value]
    assert not model.policy.optimizer._optimizer_step_pre_hooks


class Scores:
    seen: Mapping[str, float] = {}

    @hookimpl
    def on_evaluation_end(self, scores: Mapping[str, float]) -> None:
        self.seen = scores


@pytest.mark.parametrize("is_normalized", [False, True])
def test_an_evaluation_plays_in_an_environment_of_its_own(models: ModuleType, is_normalized: bool) -> None:
    scores = Scores()
    env = make_vec_env("CartPole-v1", n_envs=2)
    model = models.make_model("PPO", VecNormalize(env) if is_normalized else env)
    with HooklineCallback(
        plugins={"scores": scores}, settings=models.only(evaluation={"n_examples": 3, "every": 100})
    ) as hookline:
        model.learn(16, callback=hookline)
    assert scores.seen["eval/CartPole-v1/episodes"] == 3.0
    assert scores.seen["eval/CartPole-v1/mean_reward"] == scores.seen["eval/CartPole-v1/mean_length"] > 0


def test_an_environment_that_cannot_be_copied_asks_for_an_eval_env_and_training_goes_on(
    models: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with HooklineCallback(settings=models.only(evaluation={})) as hookline:
        model = models.make_model("PPO").learn(16, callback=hookline)
    assert "no gymnasium spec to make another by: give HooklineCallback an eval_env" in caplog.text
    assert model.num_timesteps == 16


def test_torch_and_the_logger_say_nothing_new(models: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(models, models.make_model("SAC"), 16)
    assert caplog.records == []
    assert torch.is_grad_enabled()
