"""verifiers and openenv, each in a virtual environment of its own, which `make dist` makes.

They cannot be in one environment, and have hundreds of megabytes of requirements. To run these tests by hand, name a
Python that has the one or the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from hookline.rollout.text import LimitReached  # noqa: E402
from hookline_environments.host_process import HostError  # noqa: E402
from hookline_environments.processes import openenv_environment, verifiers_environment  # noqa: E402
from hookline_hookspecs import Turn  # noqa: E402

HERE = Path(__file__).parent
VERIFIERS, OPENENV = (os.environ.get(f"HOOKLINE_TEST_{name}_PYTHON", "") for name in ("VERIFIERS", "OPENENV"))

needs_verifiers = pytest.mark.skipif(not VERIFIERS, reason="HOOKLINE_TEST_VERIFIERS_PYTHON names no Python")
needs_openenv = pytest.mark.skipif(not OPENENV, reason="HOOKLINE_TEST_OPENENV_PYTHON names no Python")


def reward_for(conversation: Any, *responses: str) -> float | None:
    """The reward of a conversation that ends after one of these responses."""
    next(conversation)
    try:
        for response in responses:
            conversation.send(response)
    except StopIteration as end:
        return end.value
    raise AssertionError("the conversation goes on")


@needs_verifiers
def test_a_taskset_of_verifiers_is_scored_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    environment = verifiers_environment("sums-taskset", python=VERIFIERS, size=100, held_out_size=10, digits=2)
    try:
        rng = np.random.default_rng(0)
        trained, held_out = ([environment.draw(rng, held_out=own) for _ in range(40)] for own in (False, True))
        assert {problem.metadata["task"] for problem in held_out} <= set(range(90, 100))
        assert {problem.metadata["task"] for problem in trained} <= set(range(90))
        problem = trained[0]
        task = problem.metadata["task"]
        assert problem.answer == str(task + 1)
        assert next(environment.converse(problem)) == [Turn("system", "Add."), Turn("user", f"{task}+1=")]
        for response, reward in ((problem.answer, 1.5), ("-1", 0.5), ("12345", 0.0)):
            assert reward_for(environment.converse(problem), response) == reward
    finally:
        environment.close()


@needs_verifiers
def test_what_verifiers_cannot_load_or_needs_more_than_a_prompt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    with pytest.raises(HostError, match=r"environment 'verifiers:nowhere': .*taskset 'nowhere' not found"):
        verifiers_environment("nowhere", python=VERIFIERS)
    message = "task 0 needs a container, and only tasks with a prompt alone can be played"
    with pytest.raises(HostError, match=message):
        verifiers_environment("sums_taskset", python=VERIFIERS, size=1, image="python:3.11")
    with pytest.raises(HostError, match="the taskset has 5 tasks, which is too few to hold out 5"):
        verifiers_environment("sums_taskset", python=VERIFIERS, size=5, held_out_size=5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = tmp_path_factory.mktemp("server") / "port"
    with subprocess.Popen([OPENENV, HERE / "openenv_server.py", port]) as process:
        while not (port.exists() and port.read_text()):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port.read_text()}"
        process.kill()


@needs_openenv
def test_an_openenv_server_has_a_session_for_each_conversation(server: str) -> None:
    environment = openenv_environment(server, python=OPENENV, prompt="Guess. ", reset={"highest": 5})
    try:
        rng = np.random.default_rng(0)
        assert all(environment.draw(rng).metadata["seed"] % 2 == 0 for _ in range(20))
        assert all(environment.draw(rng, held_out=True).metadata["seed"] % 2 == 1 for _ in range(20))
        problem = environment.draw(rng)
        unfinished = environment.converse(problem)
        assert next(unfinished) == [Turn("user", "Guess. 1 to 5?")]
        assert unfinished.send("0") == [Turn("user", "more")]
        rewards = [reward_for(environment.converse(problem), *"12345") for _ in range(2)]
        assert rewards[0] == rewards[1]
        assert rewards[0] in (1.0, 0.75, 0.5, 0.25, 0.0), "the sum of the steps' rewards"
        with pytest.raises(StopIteration) as caught:
            unfinished.throw(LimitReached("max_turns"))
        assert caught.value.value == -0.25
        with pytest.raises(HostError, match="invalid literal for int"):
            reward_for(environment.converse(problem), "many")
    finally:
        environment.close()


@needs_openenv
def test_a_server_that_is_not_there_is_an_error(server: str) -> None:
    with pytest.raises(HostError, match=r"environment 'openenv:http://127.0.0.1:9': URLError: .*refused"):
        openenv_environment("http://127.0.0.1:9", python=OPENENV)


@pytest.mark.parametrize("make", [verifiers_environment, openenv_environment])
def test_a_python_without_the_package_is_an_error_that_says_what_to_do(make: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    with pytest.raises(
        HostError, match=r"empty/bin/python cannot import .*: install it there, .*set the option python"
    ):
        make("http://127.0.0.1:9", python=python)
