"""A run that was stopped goes on as if it had not been, as far as its environment can."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from hookline import hookimpl
from hookline.errors import HooklineError
from hookline_hookspecs import TrainerState
from hookline_sb3 import HooklineCallback

TOTAL = 64
OFF_POLICY = ("DQN", "SAC", "TD3")


class Stop(Exception):
    """Stands for a crash."""


class StopInEpoch:
    critical = True

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    @hookimpl
    def on_epoch_start(self, state: TrainerState) -> None:
        if state.epoch == self.epoch:
            raise Stop


def learn(
    models: ModuleType, folder: Path, model: Any, *plugins: object, total: int = TOTAL, every: int = 1, **options: Any
) -> Any:
    """:param every: epochs between two checkpoints, of which there is one at the end besides."""
    named = {f"own-{number}": plugin for number, plugin in enumerate(plugins)}
    with HooklineCallback(
        folder, plugins=named, settings=models.only(checkpoint={"every": every}), **options
    ) as hookline:
        model.learn(total, callback=hookline)
    return model


def stopped(models: ModuleType, folder: Path, model: Any, epoch: int = 5, **options: Any) -> None:
    with pytest.raises(Stop):
        learn(models, folder, model, StopInEpoch(epoch), **options)


def state_of(models: ModuleType, model: Any) -> dict[str, Any]:
    """All that training has come to."""
    return {
        "weights": models.weights_of(model),
        "num_timesteps": model.num_timesteps,
        "updates": model._n_updates,
        "rate": getattr(model, "exploration_rate", None),
        "entropy": float(model.log_ent_coef.detach()) if hasattr(model, "log_ent_coef") else None,
    }


def test_a_resumed_run_ends_bit_identical_to_one_that_was_never_stopped(
    models: ModuleType, algorithm: str, tmp_path: Path
) -> None:
    whole = learn(models, tmp_path / "whole", models.make_model(algorithm))
    keep = {"save_replay_buffer": algorithm in OFF_POLICY}
    stopped(models, tmp_path / "run", models.make_model(algorithm), **keep)
    resumed = learn(models, tmp_path / "run", models.make_model(algorithm), resume=True, **keep)
    assert state_of(models, resumed) == state_of(models, whole)
    assert [own["r"] for own in resumed.ep_info_buffer] == [own["r"] for own in whole.ep_info_buffer]


def normalized(models: ModuleType, *, discrete: bool) -> Any:
    return VecNormalize(DummyVecEnv([lambda: models.Line(discrete=discrete)] * 2))


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_schedules_normalization_and_state_dependent_exploration_are_resumed(
    models: ModuleType, name: str, tmp_path: Path
) -> None:
    def model() -> Any:
        changes = {"use_sde": True, "learning_rate": lambda left: 1e-3 * left}
        return models.make_model(name, normalized(models, discrete=False), **changes)

    keep = {"save_replay_buffer": name == "SAC", "total": 2 * TOTAL}
    whole = learn(models, tmp_path / "whole", model(), **keep)
    stopped(models, tmp_path / "run", model(), **keep)
    resumed = learn(models, tmp_path / "run", model(), resume=True, **keep)
    assert state_of(models, resumed) == state_of(models, whole)
    for own, other in ((resumed.env.obs_rms, whole.env.obs_rms), (resumed.env.ret_rms, whole.env.ret_rms)):
        assert (own.mean.tolist(), own.var.tolist(), own.count) == (
            other.mean.tolist(),
            other.var.tolist(),
            other.count,
        )


def test_a_run_that_a_plugin_stopped_goes_on_without_the_step_that_was_too_many(
    models: ModuleType, tmp_path: Path
) -> None:
    class Enough:
        @hookimpl
        def on_epoch_start(self, state: TrainerState) -> None:
            state.stop_reason = "enough" if state.epoch == 4 else None

    whole = learn(models, tmp_path / "whole", models.make_model("PPO"))
    learn(models, tmp_path / "run", models.make_model("PPO"), Enough(), every=100)
    resumed = learn(models, tmp_path / "run", models.make_model("PPO"), resume=True)
    assert state_of(models, resumed) == state_of(models, whole)


def test_two_resumes_from_one_checkpoint_are_identical_in_an_environment_of_chance(
    models: ModuleType, tmp_path: Path
) -> None:
    def model() -> Any:
        return models.make_model("PPO", "CartPole-v1")

    stopped(models, tmp_path / "run", model())
    (tmp_path / "copy").mkdir()
    subprocess.run(["cp", "-r", f"{tmp_path / 'run'}/.", tmp_path / "copy"], check=True)
    first = learn(models, tmp_path / "run", model(), resume=True)
    second = learn(models, tmp_path / "copy", model(), resume=True)
    assert state_of(models, first) == state_of(models, second)


def test_new_episodes_of_a_resumed_run_are_not_those_that_the_run_began_with(
    models: ModuleType, tmp_path: Path
) -> None:
    class Beginnings:
        """The first observations of all episodes."""

        def __init__(self) -> None:
            self.seen: list[tuple[float, ...]] = []

        @hookimpl
        def on_rollout_end(self, rollout: Any) -> None:
            begins = rollout.arrays["episode_starts"] == 1
            self.seen += map(tuple, rollout.arrays["observations"][begins].tolist())

    first, second = Beginnings(), Beginnings()
    with pytest.raises(Stop):
        learn(models, tmp_path / "run", models.make_model("PPO", "CartPole-v1"), first, StopInEpoch(8), total=128)
    learn(models, tmp_path / "run", models.make_model("PPO", "CartPole-v1"), second, resume=True, total=128)
    assert len(first.seen) > 1
    assert second.seen
    assert not set(first.seen) & set(second.seen)


def test_a_run_that_is_complete_has_nothing_left_to_do(models: ModuleType, tmp_path: Path) -> None:
    whole = learn(models, tmp_path / "run", models.make_model("A2C"))
    again = learn(models, tmp_path / "run", models.make_model("A2C"), resume=True)
    assert models.weights_of(again) == models.weights_of(whole)


def test_an_episode_that_a_resume_cuts_off_is_no_terminal_one(models: ModuleType, tmp_path: Path) -> None:
    changes = {"train_freq": 3, "learning_starts": 1000}
    stopped(models, tmp_path / "run", models.make_model("DQN", **changes), save_replay_buffer=True)
    model = models.make_model("DQN", **changes)
    with pytest.raises(Stop):
        learn(models, tmp_path / "run", model, StopInEpoch(6), resume=True, save_replay_buffer=True)
    buffer = model.replay_buffer
    # Episodes end at every eighth step; the first run ended after 15 of them, the second has made three more.
    assert buffer.pos == 18
    assert np.flatnonzero(buffer.dones[:18, 0]).tolist() == [7, 14]
    assert (buffer.dones * (1 - buffer.timeouts)).sum() == 0


def test_a_resume_without_the_replay_buffer_warns(
    models: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(models, tmp_path / "run", models.make_model("DQN"))
    learn(models, tmp_path / "run", models.make_model("DQN"), resume=True)
    assert "the checkpoint has no replay buffer, so the run goes on with an empty one" in caplog.text


def test_a_resume_with_another_total_or_another_setting_warns(
    models: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped(models, tmp_path / "run", models.make_model("PPO"))
    learn(models, tmp_path / "run", models.make_model("PPO", gamma=0.5), resume=True, total=80)
    assert "with a different config: " in caplog.text
    assert "total_timesteps was 64, is 80" in caplog.text
    assert "gamma was 0.99, is 0.5" in caplog.text


def test_another_algorithm_or_another_buffer_is_refused(models: ModuleType, tmp_path: Path) -> None:
    stopped(models, tmp_path / "run", models.make_model("DQN"), save_replay_buffer=True)
    with pytest.raises(HooklineError, match="replay buffer has 64 steps of 1 environment.*this model's has 32 of 1"):
        learn(models, tmp_path / "run", models.make_model("DQN", buffer_size=32), resume=True)

    class Double(DQN):
        """With the same weights, and another rule of learning."""

    other = Double("MlpPolicy", models.Line(discrete=True), policy_kwargs={"net_arch": [8]}, device="cpu")
    with pytest.raises(HooklineError, match="the checkpoint is one of DQN, and the model is a Double"):
        learn(models, tmp_path / "run", other, resume=True)


def test_a_replay_buffer_that_cannot_be_saved_is_refused_before_the_run_begins(
    models: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(HooklineError, match="PPO has no replay buffer: leave out save_replay_buffer"):
        learn(models, tmp_path / "run", models.make_model("PPO"), save_replay_buffer=True)

    class Goal(models.Line):  # type: ignore[name-defined, misc]
        """Gives its observation as a goal environment does."""

        observation_space = gymnasium.spaces.Dict(
            dict.fromkeys(("observation", "achieved_goal", "desired_goal"), models.Line.observation_space)
        )

        def _seen(self) -> Any:
            return dict.fromkeys(self.observation_space, super()._seen())

        def compute_reward(self, *_: Any) -> Any:
            return 0.0

    model = DQN("MultiInputPolicy", Goal(discrete=True), replay_buffer_class=HerReplayBuffer, device="cpu")
    with pytest.raises(HooklineError, match="a HerReplayBuffer may have more state than is known here"):
        learn(models, tmp_path / "run", model, save_replay_buffer=True)
    assert not (tmp_path / "run").exists()


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import small_models
from hookline import hookimpl
from hookline_sb3 import HooklineCallback

class SignalItself:
    @hookimpl
    def post_training_step(self, state):
        if state.step == 22:  # in the middle of the update of epoch 5
            os.kill(os.getpid(), int(sys.argv[3]))

model = small_models.make_model("PPO")
settings = small_models.only(checkpoint={"every": 1}, status={})
with HooklineCallback(sys.argv[2], plugins={"own": SignalItself()}, settings=settings) as hookline:
    model.learn(64, callback=hookline)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_was_killed_or_terminated_is_resumed(
    models: ModuleType, tmp_path: Path, number: signal.Signals
) -> None:
    here, folder = Path(__file__).parent, tmp_path / "run"
    child = subprocess.run([sys.executable, "-c", CHILD, here, folder, str(int(number))])
    assert child.returncode == (-9 if number is signal.SIGKILL else 128 + 15)
    assert list(folder.glob("checkpoints/epoch-*/manifest.json"))
    if number is signal.SIGTERM:
        assert "terminated by SIGTERM" in (folder / "status.json").read_text()
    resumed = learn(models, folder, models.make_model("PPO"), resume=True)
    whole = learn(models, tmp_path / "whole", models.make_model("PPO"))
    assert state_of(models, resumed) == state_of(models, whole)
