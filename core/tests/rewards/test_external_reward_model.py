"""The external reward model, against a real server that is slow, fails, hangs, or answers nonsense."""

from __future__ import annotations

import contextlib
import email.utils
import gzip
import json
import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from hookline.rewards import (
    IntegratedRewardConfig,
    RewardConfig,
    RewardError,
    RolloutRewardProcessor,
    create_integrated_reward_system,
)

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
        return [float(reward) for reward in np.array(processor.process_episode_rewards(found), np.float64).round(6)]


def test_episodes_are_sent_with_their_reference_and_rewards_come_back(server: RewardServer) -> None:
    found = [{"prompt": "2 + 2 =", "response": "0.5", "reference": "4"}]
    assert ask(server.url, found) == [0.5]
    assert server.requests[0][2] == [{"prompt": "2 + 2 =", "response": "0.5", "reference": "4"}]


def side_by_side(server: RewardServer, workers: int) -> None:
    """Have the server answer only when so many requests are there at once."""
    everyone_is_here = threading.Barrier(workers, timeout=500)

    def wait_for_the_others(found: list[dict[str, Any]]) -> Answer:
        everyone_is_here.wait()
        return score_by_response(found)

    server.answer = wait_for_the_others


def test_requests_of_one_call_run_side_by_side_and_answers_are_in_order(server: RewardServer) -> None:
    side_by_side(server, 4)
    rewards = ask(server.url, episodes(40), batch_size=5, max_workers=4, external_rm_timeout=60.0)
    assert rewards == [number / 100 for number in range(40)]
    assert (len(server.requests), server.most_at_once) == (8, 4)


def test_requests_of_the_integrated_system_run_side_by_side_at_default_batch_sizes(server: RewardServer) -> None:
    side_by_side(server, 4)
    config = IntegratedRewardConfig(RewardConfig(**NOTHING_ELSE, external_rm_url=server.url), enable_verification=False)
    with create_integrated_reward_system(config) as system:
        rewards, _, _ = system.process_episodes(episodes(100))
    assert np.array(rewards) == pytest.approx([number / 100 for number in range(100)])
    assert (len(server.requests), server.most_at_once) == (4, 4)


def test_answers_are_kept_in_order_however_late_they_come(server: RewardServer) -> None:
    the_last_is_answered = threading.Event()

    def last_first(found: list[dict[str, Any]]) -> Answer:
        if found[0]["response"] == "0.30":
            the_last_is_answered.set()
        the_last_is_answered.wait(60)
        return score_by_response(found)

    server.answer = last_first
    rewards = ask(server.url, episodes(40), batch_size=10, max_workers=4, external_rm_timeout=60.0)
    assert rewards == [number / 100 for number in range(40)]


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_requests_run_at_once_than_there_are_workers(server: RewardServer, workers: int) -> None:
    side_by_side(server, workers)
    assert len(ask(server.url, episodes(9), batch_size=1, max_workers=workers, external_rm_timeout=60.0)) == 9
    assert server.most_at_once == workers


def fail_from_ten_to_nineteen(found: list[dict[str, Any]]) -> Answer:
    return (400, {}, b"") if found[0]["response"] == "0.10" else score_by_response(found)


def test_one_failed_request_is_an_error_that_names_its_episodes(server: RewardServer) -> None:
    server.answer = fail_from_ten_to_nineteen
    with pytest.raises(RewardError, match="episodes 10 to 19: status 400"):
        ask(server.url, episodes(40), batch_size=10)


def test_one_failed_request_leaves_the_answers_of_the_others(server: RewardServer) -> None:
    server.answer = fail_from_ten_to_nineteen
    rewards = ask(server.url, episodes(40), batch_size=10, on_failure="not_applicable")
    expected = [math.nan if 10 <= number < 20 else number / 100 for number in range(40)]
    assert rewards == pytest.approx(expected, nan_ok=True)


def test_requests_that_have_not_begun_are_given_up_when_one_has_failed(server: RewardServer) -> None:
    server.answer = lambda found: (400, {}, b"")
    with pytest.raises(RewardError, match="episodes 0 to 0: status 400"):
        ask(server.url, episodes(1000), batch_size=1, max_workers=1)
    assert len(server.requests) < 1000


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
        RewardError, match=r"with a Retry-After of 3600 s, which is longer than external_rm_timeout \(5.0 s\)"
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
    assert "these episodes get no reward from it" in caplog.text
    assert math.isnan(ask(server.url, episodes(1), **lenient)[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>busy</html>", "the response is not JSON"),
        (b"\xff\xfe\xfd", "the response is not JSON"),
        (b"[0.5, 0.5]", 'the response has no list of "rewards"'),
        (b'{"rewards": 0.5}', 'the response has no list of "rewards"'),
        (b'{"rewards": [0.5]}', "the response has 1 scores for 2 episodes"),
        (b'{"rewards": [0.5, NaN]}', "the response, episode 1: the score is NaN"),
        (b'{"rewards": [0.5, Infinity]}', r"the response, episode 1: the score must be in 0\.\.1, got inf"),
        (b'{"rewards": [0.5, 1e999]}', r"the response, episode 1: the score must be in 0\.\.1, got inf"),
        (b'{"rewards": [0.5, 1' + b"0" * 400 + b"]}", r"episode 1: the score must be a number in 0\.\.1, got 100000"),
        (b'{"rewards": [0.5, 1' + b"0" * 5000 + b"]}", "the response is not JSON"),
        (b"[" * 100_000, "the response is not JSON"),
        (b'{"rewards": [0.5, 7]}', r"the response, episode 1: the score must be in 0\.\.1, got 7\.0"),
        (b'{"rewards": [0.5, "0.5"]}', 'the "rewards" of the response must be numbers or null'),
        (b'{"rewards": [0.5, true]}', 'the "rewards" of the response must be numbers or null'),
        (b'{"rewards": [0.5, {}]}', "the response, episode 1: the score must be a number"),
    ],
)
def test_nonsense_is_an_error_and_is_not_asked_for_again(server: RewardServer, content: bytes, message: str) -> None:
    server.answer = lambda found: (200, {}, content)
    with pytest.raises(RewardError, match=message):
        ask(server.url, episodes(2))
    assert len(server.requests) == 1
    fallen_back = ask(server.url, episodes(2), accuracy_weight=1.0, on_failure="not_applicable")
    assert fallen_back == [1.0, 1.0]


def test_an_answer_that_is_compressed_though_nothing_asked_for_it_is_an_error(server: RewardServer) -> None:
    server.answer = lambda found: (200, {"Content-Encoding": "gzip"}, gzip.compress(rewards_answer([0.5])[2]))
    with pytest.raises(RewardError, match="the response is not JSON"):
        ask(server.url, episodes(1))
    assert server.requests[0][1]["accept-encoding"] == "identity"


def test_a_server_that_hangs_is_left_after_the_timeout(server: RewardServer) -> None:
    def hang(found: list[dict[str, Any]]) -> Answer:
        server.released.wait(60)
        return score_by_response(found)

    server.answer = hang
    with pytest.raises(RewardError, match=r"no complete response within 0.2 s"):
        ask(server.url, episodes(1), external_rm_timeout=0.2, external_rm_retries=1)
    assert len(server.requests) == 2
    server.released.set()


@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\nx-slow: ", "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"])
def test_a_server_that_drips_its_headers_or_its_answer_is_left_after_the_timeout(head: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(head.encode())
                while not done.wait(0.02):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(RewardError, match=r"no complete response within 0.3 s"):
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
    assert re.search(r"the external reward model scored 1 episodes in [\d.]+ s", caplog.text)
    sent = {name.lower(): value for name, value in server.requests[0][1].items()}
    assert sent["authorization"] == "Bearer t0p-s3cret"
    assert "t0p-s3cret" not in caplog.text


def test_the_external_reward_is_weighed_with_the_others(server: RewardServer) -> None:
    server.answer = lambda found: rewards_answer([0.0] * len(found))
    assert ask(server.url, episodes(1), accuracy_weight=1.0, external_rm_weight=3.0) == [0.25]


def test_text_that_is_no_valid_unicode_is_sent_all_the_same(server: RewardServer) -> None:
    server.answer = lambda found: rewards_answer([0.5])
    assert ask(server.url, [{"response": "a lone \ud800 surrogate"}]) == [0.5]
