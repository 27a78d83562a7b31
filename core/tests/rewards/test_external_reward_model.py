"""The external reward model, against a real server that is slow, fails, hangs, or answers nonsense."""

from __future__ import annotations

import email.utils
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hookline.rewards import RewardConfig, RewardError, RolloutRewardProcessor

Answer = tuple[int, dict[str, str], bytes]
HANG_UP: Answer = (0, {}, b"")
"""No answer at all: the connection is closed."""
NOTHING_ELSE = {"length_weight": 0, "keyword_weight": 0, "perplexity_weight": 0, "accuracy_weight": 0}


def rewards_answer(rewards: Any) -> Answer:
    return 200, {}, json.dumps({"rewards": rewards}).encode()


def score_by_response(episodes: list[dict[str, Any]]) -> Answer:
    return rewards_answer([float(episode["response"]) for episode in episodes])


class RewardServer(ThreadingHTTPServer):
    """Answers as the test says, and keeps what it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RewardHandler)
        self.answer: Callable[[list[dict[str, Any]]], Answer] = score_by_response
        self.next_answers: list[Answer] = []
        self.requests: list[tuple[float, dict[str, str], list[dict[str, Any]]]] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/score?key=in-the-query"


class RewardHandler(BaseHTTPRequestHandler):
    server: RewardServer

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with server.lock:
            server.requests.append((time.monotonic(), dict(self.headers), body["episodes"]))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            planned = server.next_answers.pop(0) if server.next_answers else None
        try:
            status, headers, content = planned or server.answer(body["episodes"])
        finally:
            with server.lock:
                server.at_once -= 1
        if (status, headers, content) == HANG_UP:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[RewardServer]:
    with RewardServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def episodes(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"prompt {number}", "response": f"{number / 100:.2f}"} for number in range(count)]


def ask(url: str, found: list[dict[str, Any]], **config: Any) -> list[float]:
    settings = {
        **NOTHING_ELSE,
        "external_rm_url": url,
        "external_rm_backoff": 0.01,
        "external_rm_timeout": 5.0,
        **config,
    }
    with RolloutRewardProcessor(RewardConfig(**settings)) as processor:
        return processor.process_episode_rewards(found).tolist()


def test_episodes_are_sent_with_their_reference_and_rewards_come_back(server: RewardServer) -> None:
    found = [{"prompt": "2 + 2 =", "response": "0.5", "reference": "4"}]
    assert ask(server.url, found) == [0.5]
    assert server.requests[0][2] == [{"prompt": "2 + 2 =", "response": "0.5", "reference": "4"}]


def test_answers_are_kept_in_order_however_late_they_come(server: RewardServer) -> None:
    def slow_at_first(found: list[dict[str, Any]]) -> Answer:
        server.released.wait(0.3 - float(found[0]["response"]) * 3)
        return score_by_response(found)

    server.answer = slow_at_first
    model = {"batch_size": 10, "max_workers": 10}
    with RolloutRewardProcessor(RewardConfig(**NOTHING_ELSE, external_rm_url=server.url, **model)) as processor:
        from hookline.rewards.episodes import as_records
        from hookline_hookspecs import EpisodeBatch

        answers = processor._external.ask(EpisodeBatch(as_records(episodes(100))))  # type: ignore[union-attr]
        assert answers.column().tolist() == [number / 100 for number in range(100)]
    assert len(server.requests) == 10


def test_no_more_requests_run_at_once_than_there_are_workers(server: RewardServer) -> None:
    everyone_is_here = threading.Barrier(3, timeout=5)

    def wait_for_the_others(found: list[dict[str, Any]]) -> Answer:
        everyone_is_here.wait()
        return score_by_response(found)

    server.answer = wait_for_the_others
    with RolloutRewardProcessor(
        RewardConfig(**NOTHING_ELSE, external_rm_url=server.url, batch_size=1, max_workers=3)
    ) as processor:
        from hookline.rewards.episodes import as_records
        from hookline_hookspecs import EpisodeBatch

        batch = EpisodeBatch(as_records(episodes(9)))
        assert len(processor._external.ask(batch).column()) == 9  # type: ignore[union-attr]
    assert server.most_at_once == 3


def test_null_means_that_the_model_has_no_opinion(server: RewardServer) -> None:
    server.answer = lambda found: rewards_answer([None, 0.25])
    assert ask(server.url, episodes(2), accuracy_weight=1.0) == [1.0, pytest.approx(0.625)]


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_failure_that_may_pass_is_tried_again(server: RewardServer, status: int) -> None:
    server.next_answers = [(status, {}, b""), (status, {}, b"")]
    assert ask(server.url, episodes(2)) == [0.0, 0.01]
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 404, 422, 302])
def test_a_failure_that_will_not_pass_is_not_tried_again(server: RewardServer, status: int) -> None:
    server.answer = lambda found: (status, {}, b"")
    with pytest.raises(RewardError, match=f"episodes 0 to 1: status {status}"):
        ask(server.url, episodes(2))
    assert len(server.requests) == 1


def test_a_refused_token_says_which_variable_to_look_at(server: RewardServer) -> None:
    server.answer = lambda found: (401, {}, b"")
    with pytest.raises(RewardError, match="status 401; is HOOKLINE_REWARD_MODEL_TOKEN set to a valid token"):
        ask(server.url, episodes(1))


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_waited_for(server: RewardServer, form: str) -> None:
    after = "1" if form == "seconds" else email.utils.formatdate(time.time() + 2, usegmt=True)
    server.next_answers = [(429, {"Retry-After": after}, b"")]
    assert ask(server.url, episodes(1)) == [0.0]
    first, second = (moment for moment, _, _ in server.requests)
    assert second - first >= (1.0 if form == "seconds" else 0.9)


def test_a_retry_after_beyond_the_timeout_is_not_waited_for(server: RewardServer) -> None:
    server.answer = lambda found: (503, {"Retry-After": "3600"}, b"")
    with pytest.raises(
        RewardError, match=r"asked again after 3600 s, which is longer than external_rm_timeout \(5.0 s\)"
    ):
        ask(server.url, episodes(1))
    assert len(server.requests) == 1


def test_after_all_retries_it_is_an_error_that_names_the_model_and_the_episodes(server: RewardServer) -> None:
    server.answer = lambda found: (500, {}, b"")
    with pytest.raises(
        RewardError, match=rf"external reward model at http://127.0.0.1:{server.server_port}/score, "
    ) as caught:
        ask(server.url, episodes(3), external_rm_retries=2)
    assert "episodes 0 to 2: status 500" in str(caught.value)
    assert "in-the-query" not in str(caught.value)
    assert len(server.requests) == 3


def test_after_all_retries_it_can_be_not_applicable_and_is_never_made_up(
    server: RewardServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = lambda found: (500, {}, b"")
    lenient = {"external_rm_retries": 0, "on_failure": "not_applicable"}
    assert ask(server.url, episodes(1), accuracy_weight=1.0, **lenient) == [1.0]
    assert "its reward does not apply to these episodes" in caplog.text
    assert math.isnan(ask(server.url, episodes(1), **lenient)[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>busy</html>", "the answer is not JSON"),
        (b"\xff\xfe\xfd", "the answer is not JSON"),
        (b"[0.5, 0.5]", 'the answer has no list of "rewards"'),
        (b'{"rewards": 0.5}', 'the answer has no list of "rewards"'),
        (b'{"rewards": [0.5]}', "the answer gave 1 scores for 2 episodes"),
        (b'{"rewards": [0.5, NaN]}', "the answer, episode 1: the score is NaN"),
        (b'{"rewards": [0.5, 7]}', r"the answer, episode 1: the score must be in 0\.\.1, got 7\.0"),
        (b'{"rewards": [0.5, "0.5"]}', 'the "rewards" of the answer must be numbers or null'),
        (b'{"rewards": [0.5, true]}', 'the "rewards" of the answer must be numbers or null'),
        (b'{"rewards": [0.5, {}]}', "the answer, episode 1: the score must be a number"),
    ],
)
def test_nonsense_is_an_error_and_is_not_asked_for_again(server: RewardServer, content: bytes, message: str) -> None:
    server.answer = lambda found: (200, {}, content)
    with pytest.raises(RewardError, match=message):
        ask(server.url, episodes(2))
    assert len(server.requests) == 1


def test_an_answer_that_cannot_be_decompressed_is_an_error(server: RewardServer) -> None:
    server.answer = lambda found: (200, {"Content-Encoding": "gzip"}, b"not gzip")
    with pytest.raises(RewardError, match="the answer cannot be decoded"):
        ask(server.url, episodes(1))


def test_a_server_that_hangs_is_left_after_the_timeout(server: RewardServer) -> None:
    def hang(found: list[dict[str, Any]]) -> Answer:
        server.released.wait(60)
        return score_by_response(found)

    server.answer = hang
    with pytest.raises(RewardError, match=r"no answer within 0.2 s"):
        ask(server.url, episodes(1), external_rm_timeout=0.2, external_rm_retries=1)
    assert len(server.requests) == 2
    server.released.set()


def test_a_server_that_drips_is_left_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                while not done.wait(0.05):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(RewardError, match=r"no whole answer within 0.3 s"):
            ask(url, episodes(1), external_rm_timeout=0.3, external_rm_retries=0)
        done.set()
        thread.join()


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RewardError, match="ConnectError"):
        ask(f"http://127.0.0.1:{port}/", episodes(1), external_rm_retries=1)


def test_a_connection_that_breaks_is_tried_again(server: RewardServer) -> None:
    server.next_answers = [HANG_UP]
    with pytest.raises(RewardError, match="RemoteProtocolError"):
        ask(server.url, episodes(1), external_rm_retries=0)
    server.next_answers = [HANG_UP]
    assert ask(server.url, episodes(1)) == [0.0]


def test_the_token_comes_from_the_environment_and_is_never_logged(
    server: RewardServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOKLINE_REWARD_MODEL_TOKEN", "t0p-s3cret")
    server.next_answers = [(500, {}, b"")]
    with caplog.at_level(logging.DEBUG):
        assert ask(server.url, episodes(1)) == [0.0]
    sent = {name.lower(): value for name, value in server.requests[0][1].items()}
    assert sent["authorization"] == "Bearer t0p-s3cret"
    assert "t0p-s3cret" not in caplog.text


def test_the_external_reward_is_weighed_with_the_others(server: RewardServer) -> None:
    server.answer = lambda found: rewards_answer([0.0] * len(found))
    assert ask(server.url, episodes(1), accuracy_weight=1.0, external_rm_weight=3.0) == [0.25]


def test_text_that_is_no_valid_unicode_is_sent_all_the_same(server: RewardServer) -> None:
    server.answer = lambda found: rewards_answer([0.5])
    assert ask(server.url, [{"response": "a lone \ud800 surrogate"}]) == [0.5]
