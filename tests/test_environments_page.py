"""What docs/environments.md shows, run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookline.rollout.text import LimitReached, TextProblem
from hookline.training.tasks.grpo import LessonConfig
from hookline_environments.host_process import HOSTING
from hookline_environments.processes import process_environment
from hookline_hookspecs import Episode, Turn

PAGE = Path(__file__).parents[1] / "docs" / "environments.md"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The page's blocks of Python by their first line. Those that are files are written to the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = {block.partition("\n")[0]: block for block in found}
    for name, block in named.items():
        if name.startswith("# "):
            (tmp_path / name.removeprefix("# ")).write_text(block, encoding="utf-8")
    return named


def test_the_game_is_played_and_the_plugin_ends_a_conversation(
    blocks: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(blocks["from guess import GuessTheNumber"], names)
    rollout = names["rollout"]
    assert rollout.stats["failed"] == 0
    assert [own.group for own in rollout.episodes] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert capsys.readouterr().out.startswith("system: Guess.\nuser: 1 to 9?\nassistant: ")

    conversation = names["GuessTheNumber"](highest=9).converse(TextProblem(answer="5"))
    next(conversation)
    assert [conversation.send(guess) for guess in ("9", "four", "4")] == ["less", "more", "more"]
    with pytest.raises(StopIteration, match="0.5"):
        conversation.throw(LimitReached("max_turns"))

    exec(blocks["from hookline_hookspecs import hookimpl"], names)
    episode = Episode(turns=[Turn("user", "?"), Turn("assistant", "5"), Turn("user", "more"), Turn("assistant", "5")])
    names["NoRepeats"]().on_turn_end(episode, episode.turns[-1])
    assert (episode.metadata["stop_reason"], episode.reward) == ("repeats itself", -1.0)


def test_the_lessons_have_keys_that_the_task_knows() -> None:
    found = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lessons = [LessonConfig(**own) for block in found for own in tomllib.loads(block)["lessons"]]
    assert [own.environment.partition(":")[0] for own in lessons if own.environment] == [
        "guess.py", "guess.py", "verifiers", "process",
    ]  # fmt: skip


def test_the_host_is_played_and_answers_the_questions_of_the_table(blocks: dict[str, str]) -> None:
    environment = process_environment("echo.py", greeting="Say hello.")
    try:
        conversation = environment.converse(environment.draw(np.random.default_rng(0)))
        assert next(conversation) == [Turn("user", "Say hello.")]
        assert conversation.send("hi") == [Turn("user", "You said hi.")]
        with pytest.raises(StopIteration, match="1.0"):
            conversation.send("hello")
    finally:
        environment.close()

    rows = re.findall(r"^\| `(\{.*\})` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    questions = [json.loads(question.replace("{...}", json.dumps({"answer": "hello"}))) for question, _ in rows]
    assert [own["do"] for own in questions] == ["draw", "begin", "respond", "limit", "close", "ping"]
    command = [sys.executable, "echo.py", json.dumps({"greeting": "Say hello."})]
    environ = {**os.environ, "PYTHONPATH": str(HOSTING)}
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, env=environ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        assert json.loads(host.stdout.readline())["ready"] is True
        answers = []
        for question in questions[:4]:  # each after the answer to the last
            host.stdin.write(json.dumps(question) + "\n")
            host.stdin.flush()
            answers.append(json.loads(host.stdout.readline()))
        host.stdin.close()
    assert answers == [
        {"id": 0, "problem": {"answer": "hello", "metadata": {"seed": 7}}},
        {"id": 1, "messages": [{"role": "user", "text": "Say hello."}]},
        {"id": 2, "messages": [{"role": "user", "text": "You said hi."}]},
        {"id": 3, "reward": 0.0},
    ]
