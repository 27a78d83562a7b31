"""The coordinator collects episodes, here or in processes of their own, and replaces a process that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hookline.rollout import create_rollout_coordinator
from hookline.rollout.errors import LessonError, RolloutError
from hookline_hookspecs import EpisodeBatch


def make_text_parts():
    """An environment and a policy that talk. Made inside of a function, they travel to other processes by value."""

    class MockEnvironment:
        def reset(self):
            return "What is ML?", {"reference": "machine learning", "keywords": ["learning"]}

        def step(self, action):
            print("environments may print")
            return "", float(len(action)), True, False, {}

    class MockPolicy:
        def __call__(self, prompt):
            return f"{prompt} Learning by machine.", {"logprob": -0.5, "value": 0.25}

    return MockEnvironment, MockPolicy


def make_number_parts():
    class Walk:
        def reset(self, seed=None):
            self.random = np.random.default_rng(seed)
            self.place = self.random.standard_normal(2)
            return self.place, {}

        def step(self, action):
            self.place = self.place + action
            return self.place, 1.0, bool(self.random.random() < 0.2), False, {}

    class Shift:
        by = 1.0

        def act(self, obs):
            return np.full(2, self.by), {"logprob": -1.0, "value": 0.5}

        def update_weights(self, weights, version):
            self.by = float(weights["by"])

    return Walk, Shift


def test_the_document_block() -> None:
    MockEnvironment, MockPolicy = make_text_parts()  # noqa: N806

    # Create rollout coordinator
    coordinator = create_rollout_coordinator(
        env_fn=lambda: MockEnvironment(),
        policy_fn=lambda: MockPolicy(),
        algorithm="ppo",
        num_workers=4,
    )

    # Collect rollouts
    buffer = coordinator.collect()

    coordinator.close()
    assert isinstance(buffer, EpisodeBatch)
    assert len(buffer) == 32
    for episode in buffer:
        assert episode.prompt == "What is ML?"
        assert episode.response == "What is ML? Learning by machine."
        assert episode.reference == "machine learning"
        assert episode.reward == len(episode.response)
        assert episode.metadata["keywords"] == ["learning"]
        assert episode.logprobs.tolist() == [-0.5]
        assert episode.arrays["value"].tolist() == [0.25]


def test_it_does_not_matter_how_many_workers_play() -> None:
    env_fn, policy_fn = make_number_parts()
    batches = []
    for num_workers in (1, 2):
        with create_rollout_coordinator(env_fn, policy_fn, "grpo", num_workers, episodes_per_collect=6) as coordinator:
            assert len(coordinator.worker_pids) == (0 if num_workers == 1 else 2)
            batches.append([coordinator.collect(), coordinator.collect()])
    for alone, together in zip(*batches, strict=True):
        for one, other in zip(alone, together, strict=True):
            assert one.reward == other.reward == one.metadata["length"]
            assert one.arrays.keys() == other.arrays.keys() == {"obs", "actions", "rewards"}
            np.testing.assert_array_equal(one.arrays["obs"], other.arrays["obs"])
    first, second = batches[0]
    assert not np.array_equal(first.episodes[0].arrays["obs"][0], second.episodes[0].arrays["obs"][0])


@pytest.mark.parametrize("num_workers", [1, 2])
def test_weights_reach_every_worker_and_episodes_carry_their_version(num_workers: int) -> None:
    env_fn, policy_fn = make_number_parts()
    with create_rollout_coordinator(env_fn, policy_fn, "ppo", num_workers, episodes_per_collect=4) as coordinator:
        coordinator.update_weights({"by": np.float32(5.0)}, version=3)
        batch = coordinator.collect()
    assert batch.weights_version == 3
    assert all((episode.arrays["actions"] == 5).all() for episode in batch)
    assert {episode.metadata["weights_version"] for episode in batch} == {3}


def test_a_worker_that_is_killed_is_replaced_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    env_fn, policy_fn = make_number_parts()
    with create_rollout_coordinator(env_fn, policy_fn, "ppo", 2, episodes_per_collect=4) as coordinator:
        before = coordinator.collect()
        coordinator.update_weights({"by": np.float32(2.0)}, version=1)
        victim, other = coordinator.worker_pids
        os.kill(victim, signal.SIGKILL)
        batch = coordinator.collect()
        assert len(batch) == len(before) == 4
        assert all((episode.arrays["actions"] == 2).all() for episode in batch)
        (death,) = coordinator.deaths
        assert (death.worker, death.how) == (0, "killed by SIGKILL")
        assert "rollout worker 0 died (killed by SIGKILL)" in caplog.text
        assert victim not in coordinator.worker_pids
        assert other in coordinator.worker_pids


def test_a_worker_that_dies_in_an_episode_has_it_played_again(tmp_path: Path) -> None:
    marker = tmp_path / "died"

    class DiesOnce:
        def reset(self):
            return "", {}

        def step(self, action):
            if not marker.exists():
                marker.touch()
                os._exit(3)
            return "", 1.0, True, False, {}

    with create_rollout_coordinator(DiesOnce, lambda: str, "ppo", 2, episodes_per_collect=3) as coordinator:
        assert [episode.reward for episode in coordinator.collect()] == [1.0] * 3
        assert [death.how for death in coordinator.deaths] == ["exit status 3"]
        assert coordinator.deaths[0].episode in (0, 1)


def test_an_episode_that_kills_every_worker_is_given_up_with_an_error() -> None:
    class Deadly:
        def reset(self):
            os._exit(9)

    with (
        create_rollout_coordinator(Deadly, lambda: str, "ppo", 2, episodes_per_collect=1) as coordinator,
        pytest.raises(RolloutError, match="episode 0: 3 rollout workers died of it, the last exit status 9"),
    ):
        coordinator.collect()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_environment_that_raises_is_an_error_that_names_the_episode(num_workers: int) -> None:
    class Broken:
        def reset(self):
            return "", {}

        def step(self, action):
            raise KeyError("door")

    with (
        create_rollout_coordinator(Broken, lambda: str, "ppo", num_workers) as coordinator,
        pytest.raises(RolloutError, match=r"episode \d+, step 0: the environment raised KeyError: 'door'"),
    ):
        coordinator.collect()


def test_after_an_error_the_next_collection_is_not_confused_by_the_last(tmp_path: Path) -> None:
    marker = tmp_path / "mended"

    class BrokenUntilMended:
        def reset(self):
            return "", {}

        def step(self, action):
            if not marker.exists():
                raise RuntimeError("not yet")
            return "", 1.0, True, False, {}

    with create_rollout_coordinator(BrokenUntilMended, lambda: str, "ppo", 2, episodes_per_collect=4) as coordinator:
        with pytest.raises(RolloutError, match="not yet"):
            coordinator.collect()
        marker.touch()
        assert [episode.reward for episode in coordinator.collect()] == [1.0] * 4


def outcome(*answer):
    class Odd:
        def reset(self):
            return "", {}

        def step(self, action):
            return answer

    return Odd


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (outcome("", float("nan"), True, False, {}), "episode 0, step 0: the environment gave the reward nan"),
        (
            outcome("", 1.0, True, {}),
            r"episode 0, step 0: step\(\) must give \(obs, reward, terminated",
        ),
    ],
)
def test_what_is_no_outcome_is_an_error_that_says_where(environment, message: str) -> None:
    with create_rollout_coordinator(environment, lambda: str) as coordinator, pytest.raises(LessonError, match=message):
        coordinator.collect()


def test_a_factory_that_fails_in_the_worker_is_an_error_with_its_traceback() -> None:
    def env_fn():
        raise ImportError("no simulator here")

    with (
        create_rollout_coordinator(env_fn, lambda: str, "ppo", 2) as coordinator,
        pytest.raises(RolloutError) as caught,
    ):
        coordinator.collect()
    assert "ImportError: no simulator here" in str(caught.value)
    assert "in env_fn" in "".join(caught.value.__notes__)


def test_an_episode_without_end_is_cut() -> None:
    with create_rollout_coordinator(
        outcome("", 1.0, False, False, {}), lambda: str, episodes_per_collect=1, max_episode_steps=7
    ) as coordinator:
        (episode,) = coordinator.collect()
    assert (episode.reward, episode.metadata["truncated"]) == (7.0, True)


def test_an_unknown_algorithm_and_senseless_numbers_are_errors() -> None:
    with pytest.raises(RolloutError, match=r"no algorithm 'ppoo' \(did you mean 'ppo'\?\); known are ppo, grpo"):
        create_rollout_coordinator(object, object, "ppoo")
    with pytest.raises(RolloutError, match="num_workers must be at least 1, got 0"):
        create_rollout_coordinator(object, object, "ppo", 0)


def test_a_closed_coordinator_leaves_no_process_and_says_so() -> None:
    env_fn, policy_fn = make_number_parts()
    coordinator = create_rollout_coordinator(env_fn, policy_fn, "ppo", 2, episodes_per_collect=2)
    coordinator.collect()
    pids = coordinator.worker_pids
    coordinator.close()
    coordinator.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(RolloutError, match="the coordinator is closed"):
        coordinator.collect()


def test_a_script_without_a_main_guard_works_and_its_workers_end_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from hookline.rollout import create_rollout_coordinator

            class Environment:
                def reset(self):
                    return "prompt", {}
                def step(self, action):
                    return "", 1.0, True, False, {}

            class Policy:
                def __call__(self, obs):
                    return "response"

            coordinator = create_rollout_coordinator(lambda: Environment(), lambda: Policy(), "ppo", 2)
            print(sum(episode.reward for episode in coordinator.collect()))
            """
        )
    )
    # The workers hold the standard error that is read here to its end: this returns when the last of them is gone.
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert result.stdout == "32.0\n"
