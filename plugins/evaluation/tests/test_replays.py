"""What is kept of episodes, and the page that shows them."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import struct
import zlib
from array import array
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline_evaluation import EvaluationHook
from hookline_evaluation.replays.page import replay_page
from hookline_evaluation.replays.records import encode_png, episode_record, plain
from hookline_evaluation.replays.storage import write_replay
from hookline_hookspecs import Episode, ReplayRecord, TrainerState, Turn

EVIL = "</pre><script>alert('x')</script><img src=x onerror=alert(1)>"


class Picture:
    """Bytes with a shape, as every array library has them."""

    def __init__(self, height: int, width: int, channels: int = 3) -> None:
        self.shape = (height, width, channels)
        self._bytes = bytes(i % 256 for i in range(height * width * channels))
        self.nbytes = len(self._bytes)

    def tobytes(self) -> bytes:
        return self._bytes


class Elements(HTMLParser):
    """Every element of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.marked: list[str] = []
        self.text = ""
        self._in_mark = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._in_mark = tag == "mark"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_mark:
            self.marked.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_mark = False


def page_of(*episodes: Episode) -> Elements:
    return Elements(replay_page([episode_record("lesson", own) for own in episodes], title="a run", scores={"x": 0.5}))


def test_a_text_episode_keeps_its_tokens_and_their_logprobs() -> None:
    episode = Episode(
        "2+3=", "5", "5", 1.0, logprobs=array("d", [-0.5, -0.25]), group=3, metadata={"token_texts": ["5", ""]}
    )
    assert episode_record("addition", episode) == {
        "lesson": "addition",
        "reward": 1.0,
        "prompt": "2+3=",
        "response": "5",
        "reference": "5",
        "tokens": [{"text": "5", "logprob": -0.5}, {"text": "", "logprob": -0.25}],
        "group": 3,
        "metadata": {},
    }


def test_of_a_conversation_all_turns_are_kept_and_the_tokens_that_the_policy_sampled() -> None:
    episode = Episode(
        turns=[
            Turn("user", "ab", 0, 1),
            Turn("assistant", "c", 1, 2),
            Turn("tool", "d", 2, 3),
            Turn("assistant", "e", 3, 4),
        ],
        logprobs=array("d", [0.0, -0.5, 0.0, -0.25]),
        mask=[False, True, False, True],
        metadata={"token_texts": ["ab", "c", "d", "e"]},
    )
    record = episode_record("tools", episode)
    assert (record["prompt"], record["response"]) == ("ab", "e")
    assert record["turns"] == [
        {"role": "user", "text": "ab"}, {"role": "assistant", "text": "c"},
        {"role": "tool", "text": "d"}, {"role": "assistant", "text": "e"},
    ]  # fmt: skip
    assert record["tokens"] == [{"text": "c", "logprob": -0.5}, {"text": "e", "logprob": -0.25}]
    places = [page_of(episode).text.index(shown) for shown in ("userab", "assistantc", "toold", "assistante")]
    assert places == sorted(places)


def test_a_conversation_that_was_stopped_or_failed_says_why() -> None:
    turns = [Turn("user", "ab"), Turn("assistant", "c"), Turn("user", "<b>d</b>")]
    stopped = page_of(Episode(turns=turns, reward=0.0, metadata={"stop_reason": "max_turns"})).text
    assert "user<b>d</b>stopped: max_turns" in stopped
    failure = "raised ValueError: <no>"
    failed = page_of(
        Episode(turns=turns, metadata={"stop_reason": "max_turns", "failure": failure}),
        Episode(metadata={"failure": failure}),
    ).text
    assert failed.count(f"failed: the environment {failure}") == 3, "in both, and in the list for the one without turns"
    assert "None steps" not in failed


def test_a_control_episode_keeps_what_happened() -> None:
    episode = Episode(
        reward=2.0,
        arrays={"obs": [[0.5, math.nan], [1.0, 2.0]], "actions": [0, 1], "rewards": [1.0, 1.0]},
        metadata={"environment_name": "Maze-v0", "length": 2, "truncated": True},
    )
    assert episode_record("maze", episode) == {
        "lesson": "maze",
        "reward": 2.0,
        "environment": "Maze-v0",
        "length": 2,
        "truncated": True,
        "observations": [[0.5, None], [1.0, 2.0]],
        "actions": [0, 1],
        "rewards": [1.0, 1.0],
        "metadata": {},
    }


def test_what_verification_found_is_the_verdict() -> None:
    details = {"toxicity": {"result": "fail", "details": {"rude": ["idiot"]}}}
    episode = Episode(
        "why?",
        "idiot",
        metadata={"accepted": False, "rejection_reason": "rude", "verification_details": details, "reward": math.nan},
    )
    record = episode_record("talk", episode)
    assert record["verdict"] == {"accepted": False, "reason": "rude", "details": details}
    assert record["metadata"] == {}


def test_a_picture_is_a_png_that_decodes_to_itself() -> None:
    picture = Picture(3, 5)
    (frame,) = episode_record("maze", Episode(arrays={"frames": [picture]}))["frames"]
    png = base64.b64decode(frame.removeprefix("data:image/png;base64,"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (5, 3)
    start = png.index(b"IDAT")
    (length,) = struct.unpack(">I", png[start - 4 : start])
    rows = zlib.decompress(png[start + 4 : start + 4 + length])
    assert b"".join(rows[1 + 16 * y : 16 + 16 * y] for y in range(3)) == picture.tobytes()
    assert struct.unpack(">I", png[start + 4 + length : start + 8 + length])[0] == zlib.crc32(
        png[start : start + 4 + length]
    )


def test_a_picture_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("of shape (height, width, 3), got shape (2, 2, 4)")):
        encode_png(Picture(2, 2, 4))


@pytest.mark.parametrize("field", ["prompt", "response", "reference"])
def test_whatever_a_policy_says_is_shown_and_not_run(field: str) -> None:
    page = page_of(Episode(**{"prompt": "a", "response": "b", field: EVIL}))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert EVIL in page.text
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_tokens_names_and_verdicts_are_escaped_too() -> None:
    metadata: dict[str, Any] = {
        "token_texts": [EVIL],
        "accepted": False,
        "rejection_reason": EVIL,
        "verification_message": EVIL,
        "verification_result": EVIL,
        "verification_details": {EVIL: {"result": EVIL, "details": {"rude": [EVIL]}}},
        "environment_name": EVIL,
        "length": EVIL,
    }
    episode = Episode("a", EVIL, logprobs=[-1.0], metadata=metadata, arrays={"obs": [[1.0]], "rewards": [1.0]})
    page = Elements(replay_page([episode_record(EVIL, episode)], title=EVIL, scores={EVIL: 1.0}))
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_a_page_may_run_nothing_and_fetch_nothing() -> None:
    policy = dict(page_of(Episode("a", "b")).attributes)["content"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_what_verifiers_object_to_is_marked_where_it_stands() -> None:
    details = {
        "toxicity": {"result": "fail", "details": {"rude": ["idiot", "ass"], "count": 1}},
        "factual": {"result": "pass", "details": {"claims": ["class"]}},
    }
    metadata = {"verification_result": "fail", "verification_details": details}
    page = page_of(Episode("why?", "No class, you Idiot!", metadata=metadata))
    assert page.marked == ["Idiot"]
    assert "verification: fail" in page.text


def test_every_number_of_a_trajectory_has_its_strip() -> None:
    arrays = {"obs": [[0.0, 5.0], [1.0, None], [2.0, 7.0]], "actions": [0, 1, 0], "rewards": [1.0, 1.0, 0.5]}
    page = page_of(Episode(reward=2.5, arrays=arrays, metadata={"environment_name": "Maze-v0", "length": 3}))
    assert page.tags.count("polyline") == 4
    for words in ("Maze-v0, ended after 3 steps", "observation 1", "5 to 7", "action 0", "reward so far", "1 to 2.5"):
        assert words in page.text


def test_a_secret_is_in_no_part_of_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "planted-in-environment")
    said = ["the password is planted-in-environment"]
    metadata = {"environment_name": "Chat-v0", "note": said, "api_key": 7}
    record = episode_record("a", Episode("Which?", *said, arrays={"obs": said, "actions": [1]}, metadata=metadata))
    path = write_replay(tmp_path, [record], run_id="run", epoch=1, step=2, scores={})
    kept = json.loads(path.read_text())
    assert kept["observations"] == kept["metadata"]["note"] == ["the password is ********"]
    assert kept["metadata"]["api_key"] == "********"
    assert "planted-in" not in path.with_suffix(".html").read_text()


def test_a_replay_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"run_id": "run", "epoch": 1, "step": 2, "scores": {}}
    path = write_replay(tmp_path, [episode_record("a", Episode("x", "y"))], **arguments)
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_replay(tmp_path, [{"lesson": "a", "reward": math.nan, "response": "z", "prompt": ""}], **arguments)
    assert path.read_text() == before
    assert [json.loads(line)["response"] for line in before.splitlines()] == ["y"]


def test_the_hook_adds_a_replay_to_the_run_of_wandb_that_another_hook_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    path = write_replay(
        tmp_path, [episode_record("a", Episode("x", "y"))], run_id="my run", epoch=3, step=7, scores={"x": 1.0}
    )
    logged = []
    with wandb.init(mode="offline", dir=str(tmp_path), project="test", settings=wandb.Settings(silent=True)) as run:
        log_artifact = run.log_artifact
        monkeypatch.setattr(
            run, "log_artifact", lambda artifact, **own: logged.append((artifact, own)) or log_artifact(artifact, **own)
        )
        state = TrainerState(run_id="my run", run_dir=tmp_path)
        EvaluationHook(None, None).on_replay_saved(state, ReplayRecord(path=path, episodes=1, step=7), run)
    ((artifact, own),) = logged
    assert (artifact.name.split(":")[0], artifact.type, own["aliases"]) == (
        "replays-my-run",
        "replay",
        ["latest", "epoch-000003"],
    )
    assert sorted(artifact.manifest.entries) == ["epoch-000003.html", "epoch-000003.jsonl"]


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (numpy.float32([[0.1234567, -98765432.0], [0.0, 1e-30]]), [[0.123457, -98765400.0], [0.0, 1e-30]]),
        (numpy.float64([math.nan, 2.5, -math.inf]), [None, 2.5, None]),
        (numpy.float64([1e308, 1e-310, -5e-324]), [1e308, 0.0, 0.0]),
        (numpy.float32(1.1), 1.1),
        (numpy.array(math.nan), None),
        (numpy.array([[1, 0]]), [[1, 0]]),
        (numpy.array([True]), [True]),
    ],
)
def test_arrays_are_kept_as_lists_of_numbers_with_six_digits(values: Any, kept: Any) -> None:
    found = plain(values)
    assert found == pytest.approx(kept, rel=1e-12) if isinstance(found, float) else found == kept
    assert json.loads(json.dumps(found, allow_nan=False)) == found
