"""The coordinator collects episodes, here or in processes of their own, and replaces a process that dies."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from hookline.rollout import create_rollout_coordinator
from hookline.rollout.errors import LessonError, RolloutError
from hookline.rollout.sources.driver import WorkerDeath
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


def test_weights_that_a_policy_could_not_take_are_given_to_it_again(tmp_path: Path) -> None:
    marker = tmp_path / "tried"

    class Reluctant:
        by = 0.0

        def act(self, obs):
            return np.full(2, self.by)

        def update_weights(self, weights, version):
            if not marker.exists():
                marker.touch()
                raise MemoryError("later")
            self.by = float(weights["by"])

    env_fn, _ = make_number_parts()
    with create_rollout_coordinator(
        env_fn, Reluctant, "ppo", 1, episodes_per_collect=2, timeout_seconds=600
    ) as coordinator:
        coordinator.update_weights({"by": np.float32(5.0)}, version=3)
        with pytest.raises(RolloutError, match="the policy, version 3 of the weights: raised MemoryError: later"):
            coordinator.collect()
        assert all((episode.arrays["actions"] == 5).all() for episode in coordinator.collect())


def test_an_environment_of_gymnasium_goes_by_its_id() -> None:
    with (
        create_rollout_coordinator(lambda: gymnasium.make("CartPole-v1"), lambda: lambda obs: 7) as coordinator,
        pytest.raises(LessonError, match="environment 'CartPole-v1', episode 0, step 0: raised AssertionError"),
    ):
        coordinator.collect()


def test_a_worker_that_is_killed_is_replaced_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    env_fn, policy_fn = make_number_parts()
    with create_rollout_coordinator(env_fn, policy_fn, "ppo", 2, episodes_per_collect=4) as coordinator:
        before = coordinator.collect()
        coordinator.update_weights({"by": np.float32(2.0)}, version=1)
        victim, other = coordinator.worker_pids
        os.kill(victim, signal.SIGKILL)
        with suppress(ChildProcessError):  # its thread may have taken note of its end already
            # Otherwise the other one might have played all episodes before.
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
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
        assert coordinator.deaths[0].task in (0, 1)


def test_an_episode_that_kills_every_worker_is_given_up_with_an_error() -> None:
    class Deadly:
        def reset(self):
            os._exit(9)

    with (
        create_rollout_coordinator(Deadly, lambda: str, "ppo", 2, episodes_per_collect=1) as coordinator,
        pytest.raises(
            RolloutError, match="'Deadly', episode 0: 3 rollout workers died there, the last with exit status 9"
        ),
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
        pytest.raises(RolloutError, match=r"'Broken', episode \d+, step 0: raised KeyError: 'door'"),
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


def test_what_cannot_be_sent_or_read_is_an_error_or_the_end_of_the_worker(tmp_path: Path) -> None:
    marker = tmp_path / "garbage"

    class Odd:
        def reset(self):
            return "", {"lock": threading.Lock()} if marker.exists() else {}

        def step(self, action):
            if not marker.exists():
                marker.touch()
                os.write(int(sys.argv[1]), b"\x00\x00\x00\x05hello")
                time.sleep(600)
            return "", 1.0, True, False, {}

    with (
        create_rollout_coordinator(
            Odd, lambda: str, "ppo", 1, episodes_per_collect=1, timeout_seconds=600
        ) as coordinator,
        pytest.raises(RolloutError, match="the result cannot be sent to the trainer: TypeError: cannot pickle"),
    ):
        coordinator.collect()
    (death,) = coordinator.deaths
    assert death.how.startswith("it sent 5 bytes that are not a message")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_environment_that_exits_is_an_error_and_no_silent_end(num_workers: int) -> None:
    class Exits:
        def reset(self):
            return "", {}

        def step(self, action):
            sys.exit(0)

    with (
        create_rollout_coordinator(Exits, lambda: str, "ppo", num_workers) as coordinator,
        pytest.raises(RolloutError, match=r"'Exits', episode \d+, step 0: raised SystemExit: 0"),
    ):
        coordinator.collect()


def outcome(*answer, first=""):
    class Odd:
        def reset(self):
            return first, {}

        def step(self, action):
            return answer

    return Odd


def seen(obs):
    return outcome(obs, 1.0, False, False, {}, first=np.zeros(2))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        *(
            (outcome("", reward, True, False, {}), f"'Odd', episode 0, step 0: the reward is {shown}; a reward must be")
            for reward, shown in [
                (float("nan"), "nan"),
                (float("inf"), "inf"),
                (10**400, r"10{99}\.\.\."),
                (1e300, "1e\\+300"),
                (None, "None"),
                ("1.0", "'1.0'"),
                ([1.0, [2.0]], r"\[1.0, \[2.0\]\]"),
                (np.ones(1), r"array\(\[1.\]\)"),
            ]
        ),
        (outcome("", 1.0, True, {}), r"'Odd', episode 0, step 0: step\(\) must return \(obs, reward, terminated"),
        (outcome("", 1.0, np.ones(2), False, {}), "'Odd', episode 0, step 0: raised ValueError: The truth value"),
        (outcome(first=np.array([1.0, np.nan])), r"'Odd', episode 0, reset: the observation is \[1.0, nan\]; it must"),
        (outcome(first=None), "'Odd', episode 0, reset: the observation is None; it must be finite numbers"),
        (
            seen([1.0, np.nan]),
            r"episode 0, step 0: the observation is \[1.0, nan\]; it must be finite numbers of shape",
        ),
        (seen([1.0, np.inf]), r"episode 0, step 0: the observation is \[1.0, inf\]; it must be finite"),
        (seen([[1.0], [2.0, 3.0]]), r"step 0: the observation is \[\[1.0\], \[2.0, 3.0\]\]; it must be finite"),
        (seen("left"), "step 0: the observation is 'left'; it must be finite numbers"),
        (seen(None), "step 0: the observation is None; it must be finite numbers"),
        (seen(np.zeros(3)), r"step 0: the observation has shape \(3,\); it must be finite numbers of shape \(2,\)"),
        (outcome(3, 1.0, False, False, {}), "step 0: the observation is 3; it must be a string like the first one"),
    ],
)
def test_what_is_no_outcome_is_an_error_that_says_where(environment, message: str) -> None:
    with create_rollout_coordinator(environment, lambda: str) as coordinator, pytest.raises(LessonError, match=message):
        coordinator.collect()


def test_actions_that_make_no_array_are_an_error_that_names_the_episode() -> None:
    growing = iter(range(1, 9))

    with (
        create_rollout_coordinator(
            outcome(np.zeros(2), 1.0, False, False, {}, first=np.zeros(2)),
            lambda: lambda obs: [0.0] * next(growing),
            max_episode_steps=2,
        ) as coordinator,
        pytest.raises(LessonError, match=r"'Odd', episode 0: 'actions' must have the same shape at every step, got \["),
    ):
        coordinator.collect()


def test_an_environment_may_read_the_standard_input_and_print() -> None:
    class Nosy:
        def reset(self):
            return "", {}

        def step(self, action):
            read = len(os.read(0, 100)) + len(sys.stdin.read())
            print("a message?")
            os.write(1, b"\x00" * 100)
            return "", float(read), True, False, {}

    with create_rollout_coordinator(Nosy, lambda: str, "ppo", 2, episodes_per_collect=4) as coordinator:
        assert [episode.reward for episode in coordinator.collect()] == [0.0] * 4
        assert coordinator.deaths == []


@pytest.mark.parametrize("forked_by", ["python", "c", "another program"])
def test_what_an_environment_starts_does_not_hide_the_death_of_its_worker_and_ends_with_it(
    tmp_path: Path, forked_by: str
) -> None:
    forked = tmp_path / "forked"

    class Forks:
        def reset(self):
            return "", {}

        def step(self, action):
            if not forked.exists():
                if forked_by == "another program":
                    pid = subprocess.Popen(["sleep", "600"]).pid
                else:
                    pid = os.fork() if forked_by == "python" else ctypes.CDLL(None).fork()
                if pid == 0:
                    while True:
                        time.sleep(60)
                forked.write_text(str(pid))
                os._exit(3)
            return "", 1.0, True, False, {}

    with create_rollout_coordinator(
        Forks, lambda: str, "ppo", 1, episodes_per_collect=2, timeout_seconds=600
    ) as coordinator:
        assert [episode.reward for episode in coordinator.collect()] == [1.0] * 2
        assert [death.how for death in coordinator.deaths] == ["exit status 3"]
    if sys.platform == "linux":
        wait_until_gone(int(forked.read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 500
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z":
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_an_environment_that_hangs_once_has_its_episode_played_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "hung"

    class HangsOnce:
        def reset(self):
            return "", {}

        def step(self, action):
            if not marker.exists():
                marker.touch()
                time.sleep(600)
            return "", 1.0, True, False, {}

    with create_rollout_coordinator(
        HangsOnce, lambda: str, "ppo", 1, episodes_per_collect=2, timeout_seconds=4
    ) as coordinator:
        (hung,) = coordinator.worker_pids
        assert [episode.reward for episode in coordinator.collect()] == [1.0] * 2
        assert coordinator.deaths[0] == WorkerDeath(0, "no answer in 4 s", 0)
    assert "rollout worker 0 died (no answer in 4 s) while playing episode 0: replaced" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)


def test_an_environment_that_always_hangs_is_an_error_that_says_what_to_set() -> None:
    class Hangs:
        def reset(self):
            time.sleep(600)

    with (
        create_rollout_coordinator(Hangs, lambda: str, "ppo", 2, timeout_seconds=0.2) as coordinator,
        pytest.raises(RolloutError) as caught,
    ):
        coordinator.collect()
    assert re.match(r"environment 'Hangs', episode \d: 3 rollout workers died there", str(caught.value))
    assert "the last with no answer in 0.2 s; raise create_rollout_coordinator(timeout_seconds=...)" in str(
        caught.value
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process whose interpreter lock is held")
@pytest.mark.parametrize("hang", ["time.sleep(600)", "re.match('(a+)+$', 'a' * 60 + 'b')"])
def test_workers_do_not_outlive_a_killed_coordinator_while_an_environment_hangs(tmp_path: Path, hang: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import re, os, time
            from hookline.rollout import create_rollout_coordinator

            class Hangs:
                def reset(self):
                    os.write(2, b"hung\\n")  # print would write the line in two parts
                    {hang}

            coordinator = create_rollout_coordinator(Hangs, lambda: str, "ppo", 2)
            coordinator.collect()
            """
        )
    )
    with subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stderr is not None
        assert [coordinator.stderr.readline() for _ in range(2)] == ["hung\n"] * 2
        coordinator.kill()
        # The workers hold the standard error that is read here to its end: this returns when the last of them is gone.
        coordinator.communicate(timeout=500)


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


def test_what_fails_in_a_worker_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "hidden-password")

    def env_fn():
        raise ImportError(f"login failed: {os.environ['SOME_PASSWORD']}")

    with (
        create_rollout_coordinator(env_fn, lambda: str, "ppo", 2) as coordinator,
        pytest.raises(RolloutError) as caught,
    ):
        coordinator.collect()
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert told.count("login failed: ********") == 3
    assert "hidden-password" not in told


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
    with pytest.raises(RolloutError, match="timeout_seconds must be greater than 0 or None, got 0"):
        create_rollout_coordinator(object, object, timeout_seconds=0)


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
