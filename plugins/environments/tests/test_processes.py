"""Environments in a process of their own: the protocol, and processes that die, hang or cannot be started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from hookline.rollout.text import LimitReached, Limits, TextProblem  # noqa: E402
from hookline_environments.host_process import HOSTING, HostError  # noqa: E402
from hookline_environments.processes import ProcessEnvironment, process_environment  # noqa: E402
from hookline_hookspecs import Turn  # noqa: E402

HOST = str(Path(__file__).with_name("echo_host.py"))
RNG = np.random.default_rng(0)


@pytest.fixture
def echo() -> Iterator[Callable[..., ProcessEnvironment]]:
    made = []

    def make(**options: Any) -> ProcessEnvironment:
        made.append(process_environment(HOST, **options))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def begun(environment: ProcessEnvironment) -> Any:
    conversation = environment.converse(environment.draw(RNG))
    next(conversation)
    return conversation


def end_of(conversation: Any, step: Callable[[], Any]) -> Any:
    with pytest.raises(StopIteration) as caught:
        step()
    return caught.value.value


def process_of(environment: ProcessEnvironment) -> subprocess.Popen[bytes]:
    return environment._host._process


def test_it_draws_converses_and_rewards_as_an_environment_in_this_process_does(echo: Any) -> None:
    environment = echo(greeting="Hello!")
    assert environment.limits == Limits(max_turns=3, max_new_tokens=12)
    problem = environment.draw(np.random.default_rng(5), held_out=True)
    assert problem == TextProblem("", "bye", {"seed": problem.metadata["seed"], "held_out": True})
    assert environment.draw(np.random.default_rng(5), held_out=True) == problem
    conversation = environment.converse(problem)
    assert next(conversation) == [Turn("system", "Hello!"), Turn("user", str(problem.metadata["seed"]))]
    assert conversation.send("héllo\n") == [Turn("user", "You said héllo\n.")]
    assert end_of(conversation, lambda: conversation.send("bye")) == 1.0


def test_a_limit_is_told_and_a_conversation_that_is_closed_is_forgotten(echo: Any) -> None:
    environment = echo()
    conversation = begun(environment)
    conversation.send("one")
    assert end_of(conversation, lambda: conversation.throw(LimitReached("max_turns"))) == 0.1
    conversation = begun(environment)
    conversation.send("one")
    assert end_of(conversation, lambda: conversation.throw(LimitReached("max_tokens"))) is None
    conversation = begun(environment)
    conversation.close()
    with pytest.raises(HostError, match="KeyError: 2"):
        environment._host.ask("respond", conversation=2, text="still there?")


def test_conversations_are_played_at_the_same_time(echo: Any) -> None:
    environment = echo()
    slow = begun(environment)

    def wait() -> None:
        with pytest.raises(HostError, match="its process was killed, since it was closed"):
            slow.send("wait")

    waiting = threading.Thread(target=wait)
    waiting.start()
    quick = [begun(environment) for _ in range(8)]
    assert [conversation.send(str(number))[0].text for number, conversation in enumerate(quick)] == [
        f"You said {number}." for number in range(8)
    ]
    assert waiting.is_alive()
    environment.close()
    waiting.join(timeout=500)
    assert not waiting.is_alive()


def test_an_error_of_the_environment_is_told_and_the_process_goes_on(echo: Any) -> None:
    environment = echo()
    process = process_of(environment)
    with pytest.raises(HostError, match="^ZeroDivisionError: told to$"):
        begun(environment).send("raise")
    assert end_of(conversation := begun(environment), lambda: conversation.send("bye")) == 1.0
    assert process_of(environment) is process


@pytest.mark.parametrize(
    ("order", "patience", "reason"),
    [
        ("die", {}, "its process was killed by signal 9"),
        ("exit", {}, r"its process ended with status 3 \(leaving now\)"),
        ("stop", {"hang_seconds": 3.0}, "its process was killed, since it did not respond for 3 s"),
        ("wait", {"answer_seconds": 6.0}, "its process was killed, since it left a question unanswered for 6 s"),
    ],
)
def test_a_process_that_dies_or_hangs_ends_its_conversations_and_is_started_again(
    echo: Any, order: str, patience: dict[str, float], reason: str
) -> None:
    environment = echo(**({"hang_seconds": 500.0, "answer_seconds": 500.0} | patience))
    process = process_of(environment)
    other, asked = begun(environment), begun(environment)
    with pytest.raises(HostError, match=reason):
        asked.send(order)
    with pytest.raises(HostError, match=reason):
        other.send("are you there?")
    assert process.poll() is not None
    conversation = begun(environment)
    assert process_of(environment) is not process
    assert end_of(conversation, lambda: conversation.send("bye")) == 1.0


def test_a_ping_that_could_not_be_sent_is_sent_later(echo: Any) -> None:
    environment = echo(hang_seconds=500.0)
    host = environment._host
    slow = begun(environment)

    def wait() -> None:
        with pytest.raises(HostError, match="its process was killed, since it was closed"):
            slow.send("wait")

    waiting = threading.Thread(target=wait)
    with host._writing:  # as if a question were written whenever the reader looks
        waiting.start()
        while host._silent_since is None:
            time.sleep(0.01)
        silent_since = host._silent_since
    for _ in range(6000):
        if host._silent_since != silent_since:  # the process answers, so it is not killed after 500 s
            break
        time.sleep(0.01)
    assert host._silent_since != silent_since
    environment.close()
    waiting.join(timeout=500)
    assert not waiting.is_alive()


def test_a_question_may_take_twice_the_time_that_the_environment_gives_itself(echo: Any) -> None:
    assert echo()._host.answer_seconds == 120.0
    assert echo(answer_seconds=7.0)._host.answer_seconds == 7.0


def test_a_process_that_is_killed_from_outside_is_started_again(echo: Any) -> None:
    environment = echo()
    os.kill(process_of(environment).pid, signal.SIGKILL)
    environment._host._reader.join(timeout=500)
    assert environment.draw(RNG).answer == "bye"


def test_one_that_cannot_be_started_again_is_not_tried_for_each_conversation(
    echo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = echo()
    process_of(environment).kill()
    environment._host._reader.join(timeout=500)
    name, command, *others = environment._arguments
    monkeypatch.setattr(environment, "_arguments", (name, ["/no/such/python", *command[1:]], *others))
    with pytest.raises(HostError, match="'/no/such/python' cannot be started: No such file or directory"):
        environment.draw(RNG)
    with pytest.raises(HostError, match="could not be started again a moment ago"):
        environment.draw(RNG)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"python": "/no/such/python"}, "'/no/such/python' cannot be started: No such file or directory"),
        ({"fault": "raise ImportError('no verifiers here')"}, "ImportError: no verifiers here"),
        ({"color": "red"}, r"TypeError: .*unexpected keyword argument 'color'"),
        ({"fault": "sys.stderr.write('oh no\\n'); os._exit(7)"}, r"its process ended with status 7 \(oh no\)"),
        (
            {"fault": "time.sleep(1000)", "start_seconds": 1.0},
            "its process was killed, since it was not ready after 1 s",
        ),
    ],
    ids=["no python", "raises", "option", "exits", "hangs"],
)
def test_what_cannot_be_started_is_an_error_that_says_why(echo: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(HostError, match=f"^environment 'process:{HOST}': {reason}"):
        echo(**options)


def test_a_process_that_writes_something_else_than_answers_is_killed(tmp_path: Path) -> None:
    host = tmp_path / "noise.py"
    host.write_text("import time\nprint('hello', flush=True)\ntime.sleep(1000)\n")
    with pytest.raises(HostError, match="it wrote 'hello' to stdout, which is for answers alone"):
        process_environment(str(host))


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    program = f"""
import os, time
from hookline_environments.processes import process_environment
environment = process_environment({HOST!r})
print(environment._host._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(result.stdout)
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return  # it has ended, and init has not noticed
        time.sleep(0.1)
    pytest.fail("the process is still running")


def test_a_host_imports_nothing_but_pythons_own_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import hookline_host, hookline_host.verifiers_host, "
        "hookline_host.openenv_host; new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*(new - sys.stdlib_module_names - {'hookline_host'}))"
    )
    environ = {**os.environ, "PYTHONPATH": str(HOSTING)}
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.split() == []


def test_the_protocol_is_what_the_page_says() -> None:
    """Line by line, without the parts of this package that speak it."""
    environ = {**os.environ, "PYTHONPATH": str(HOSTING)}
    command = [sys.executable, HOST, json.dumps({"greeting": "Hi."})]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, env=environ) as process:

        def ask(question: dict[str, Any]) -> Any:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        ready = json.loads(process.stdout.readline())
        assert ready == {"ready": True, "limits": {"max_turns": 3, "max_new_tokens": 12, "seconds": 60.0}}
        problem = {"answer": "bye", "metadata": {"seed": 7, "held_out": False}}
        assert ask({"id": 0, "do": "draw", "seed": 7, "held_out": False}) == {"id": 0, "problem": problem}
        first = [{"role": "system", "text": "Hi."}, {"role": "user", "text": "7"}]
        assert ask({"id": 1, "do": "begin", "conversation": 5, "problem": problem}) == {"id": 1, "messages": first}
        said = {"id": 2, "messages": [{"role": "user", "text": "You said a."}]}
        assert ask({"id": 2, "do": "respond", "conversation": 5, "text": "a"}) == said
        assert ask({"id": 3, "do": "ping"}) == {"id": 3}
        assert ask({"id": 4, "do": "limit", "conversation": 5, "limit": "max_turns"}) == {"id": 4, "reward": 0.1}
        assert ask({"id": 5, "do": "respond", "conversation": 5, "text": "b"}) == {"id": 5, "error": "KeyError: 5"}
        process.stdin.close()
        assert process.wait(timeout=500) == 0


# -- in a rollout -----------------------------------------------------------------------------------------------------


def test_a_rollout_survives_its_environments_process(worker_for: Callable[..., Any]) -> None:
    from hookline.policies import TransformerPolicy
    from hookline.rollout.text import CharacterTokenizer

    policy = TransformerPolicy(CharacterTokenizer().size, width=16, layers=1, heads=2, context=256)
    lesson = {"limits": {"max_turns": 1}}
    worker = worker_for(f"process:{HOST}", lesson, {"policy": policy, "num_environments": 3})
    rollout = worker.rollout()
    assert rollout.stats["failed"] == 0
    assert all(episode.metadata["stop_reason"] == "max_turns" for episode in rollout.episodes)
    assert [episode.reward for episode in rollout.episodes] == pytest.approx([0.1] * 3)
    environment = worker._player._runners["l"]._environment
    problems = iter(range(100))

    def draw(*args: Any, **kwargs: Any) -> TextProblem:
        problem = ProcessEnvironment.draw(environment, *args, **kwargs)
        if next(problems) == 2:
            process_of(environment).kill()
            environment._host._reader.join(timeout=500)
            environment._running = lambda: environment._host  # it stays dead for this rollout
        return problem

    environment.draw = draw
    rollout = worker.rollout()
    assert rollout.stats["failed"] == 3
    reasons = {episode.metadata["failure"] for episode in rollout.episodes}
    assert reasons == {"raised HostError: its process was killed by signal 9"}
    del environment._running
    assert worker.rollout().stats["failed"] == 0


def test_a_conversation_that_hangs_costs_its_episode_and_the_process_and_no_later_rollout(
    worker_for: Callable[..., Any], tmp_path: Path
) -> None:
    from hookline.policies import TransformerPolicy
    from hookline.rollout.text import CharacterTokenizer

    policy = TransformerPolicy(CharacterTokenizer().size, width=16, layers=1, heads=2, context=256)
    lesson = {"limits": {"max_turns": 1, "seconds": 3.0}}
    config = {"policy": policy, "num_environments": 3}
    options = {"hangs_until": str(tmp_path / "has_hung"), "answer_seconds": 6.0}
    worker = worker_for(f"process:{HOST}", lesson, config, **options)
    process = process_of(worker._player._runners["l"]._environment)
    reasons = [episode.metadata.get("failure") for episode in worker.rollout().episodes]
    assert sorted(map(str, reasons)) == ["None", "None", "gave no answer within 3 s"]
    assert process.wait(timeout=500) == -signal.SIGKILL
    for thread in threading.enumerate():
        if thread.name == "hookline-environment":
            thread.join(timeout=500)
            assert not thread.is_alive()
    assert worker.rollout().stats["failed"] == 0
