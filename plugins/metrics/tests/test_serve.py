import http.client
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from hookline.cli import main
from hookline_hookspecs import Episode, Turn
from hookline_hookspecs.sinks import Report, Run
from hookline_metrics.episodes import EpisodeLog
from hookline_metrics.serve import RunServer
from hookline_metrics.sinks.sqlite import SQLiteSink

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>"

Serve = Callable[..., RunServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a folder on a free port."""
    servers: list[RunServer] = []

    def start(folder: Path) -> RunServer:
        servers.append(RunServer(folder))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def client(serve: Serve, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client with the token, of a server of `runs/` in the test's folder."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    server = serve(tmp_path / "runs")
    token = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", headers=token) as own:
        yield own


def make_run(folder: Path, *, steps: int = 20, end: str | None = "run/completed", scale: float = 1.0) -> None:
    sink = SQLiteSink(Run(folder))
    sink.write([Report(0, None, {"run/started": 1.0, "curriculum/sums/unlocked": 1.0}, 1000.0)])
    for step in range(1, steps + 1):
        numbers = {"train/loss": scale / step, "rollout/mean_reward": scale * step, "time/train": 1.0}
        sink.write([Report(step, step // 10, numbers, 1000.0 + step)])
    if end is not None:
        sink.write([Report(steps, steps // 10, {end: 1.0}, 1001.0 + steps)])
    sink.close()
    (folder / "heartbeat").touch()


def write_episode(folder: Path, *turns: Turn) -> None:
    log = EpisodeLog(8)
    verdict = {"result": "fail", "score": 0.25, "message": f"rude {EVIL}"}
    findings = {
        "accepted": False,
        "rejection_reason": "verification fails",
        "verification_details": {"manners": verdict},
    }
    log.hold(17, 1, "sums", [Episode(turns=turns, reward=0.5, reference="four", metadata=findings)])
    log.release()
    log.write(folder)


# -- who may read ---------------------------------------------------------------------------------------------------


def test_the_printed_url_sets_a_cookie_and_leads_to_the_page_without_the_token(serve: Serve, tmp_path: Path) -> None:
    server = serve(tmp_path)
    with httpx.Client(follow_redirects=True) as browser:
        page = browser.get(server.url)
        assert page.status_code == 200
        assert "token" not in str(page.url)
        assert browser.get(f"http://127.0.0.1:{server.server_port}/").status_code == 200
    [cookie] = page.history[0].headers.get_list("Set-Cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


@pytest.mark.parametrize("path", ["/", "/run/a", "/page.css", "/run/a/replays/x.html", "/nothing"])
def test_nothing_is_served_without_the_token(client: httpx.Client, path: str) -> None:
    address = client.base_url.join(path)
    wrong = {"Cookie": f"hookline-{client.base_url.port}=wrong"}
    for answer in (
        httpx.get(address),
        httpx.get(address, params={"token": "wrong"}),
        httpx.get(address, headers={"Authorization": "Bearer wrong"}),
        httpx.get(address, headers=wrong),
        httpx.get(address, headers={"Cookie": "\x01;;=;"}),
    ):
        assert answer.status_code == 403
        assert "open the URL that `hookline serve` has printed" in answer.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("localhost:9000", 200),  # forwarded by ssh
        ("[::1]:{port}", 200),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_name_that_is_not_loopback_is_refused_even_with_the_token(
    client: httpx.Client, host: str, status: int
) -> None:
    name = host.format(port=client.base_url.port)
    assert client.get("/", headers={"Host": name}).status_code == status


def test_another_web_page_is_refused_even_with_the_token(client: httpx.Client) -> None:
    own = f"http://127.0.0.1:{client.base_url.port}"
    assert client.get("/", headers={"Origin": own}).status_code == 200
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{client.base_url.port}", "http://127.0.0.1:1"):
        answer = client.get("/", headers={"Origin": origin})
        assert answer.status_code == 403
        assert "another web page" in answer.text


def test_it_listens_on_loopback_only(serve: Serve, tmp_path: Path) -> None:
    assert serve(tmp_path).server_address[0] == "127.0.0.1"


def test_a_token_cannot_redirect_to_another_host(serve: Serve, tmp_path: Path) -> None:
    server = serve(tmp_path)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request("GET", f"//evil.example/?token={server.token}&run=a")
    assert connection.getresponse().headers["Location"] == "/evil.example/?run=a"
    connection.close()


def test_every_answer_has_a_policy_against_scripts_of_others(client: httpx.Client) -> None:
    for answer in (client.get("/"), client.get("/run/none"), client.get("/page.js"), httpx.get(client.base_url)):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


# -- reading only -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
def test_there_is_nothing_to_change(client: httpx.Client, method: str) -> None:
    answer = client.request(method, "/", content=b"x" if method == "POST" else None)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_a_head_has_no_body(client: httpx.Client) -> None:
    answer = client.head("/")
    assert answer.status_code == 200
    assert answer.content == b""


def test_looking_at_a_run_changes_nothing_in_its_folder(client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    make_run(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in ("/", "/?run=a", "/run/a"):
        assert client.get(path).status_code == 200
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_in_a_folder_that_cannot_be_written_is_shown(client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    make_run(folder)
    folder.chmod(0o555)
    try:
        assert "train/loss" in client.get("/run/a").text
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize(
    "path",
    [
        "/run/a/replays/../config.json",
        "/run/a/replays/..%2fconfig.json",
        "/run/a/replays/%2e%2e/config.json",
        "/run/a/replays//etc/passwd",
        "/run/a/replays/%2fetc%2fpasswd",
        "/run/a/replays/link",
        "/run/a/replays/%00",
        "/run/a/replays/",
        "/run/a/config.json",
        "/run/..",
        "/run/%2e%2e",
        "/run/..%2foutside",
        "/run/%2e%2e%2foutside/replays/secret.txt",
        "/../outside/secret.txt",
        "/%2e%2e/outside/secret.txt",
    ],
)
def test_nothing_outside_the_replays_of_a_run_can_be_read(client: httpx.Client, tmp_path: Path, path: str) -> None:
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "outside")
    (tmp_path / "runs" / "a" / "config.json").write_text('{"planted": 1}')
    for folder in (tmp_path / "runs" / "a", tmp_path / "outside"):
        (folder / "replays").mkdir()
    (tmp_path / "outside" / "replays" / "secret.txt").write_text("planted")
    (tmp_path / "runs" / "a" / "replays" / "link").symlink_to(tmp_path / "outside" / "replays" / "secret.txt")
    connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port)  # it sends the path as it is
    connection.request("GET", path, headers={"Authorization": client.headers["Authorization"]})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 404
    assert "planted" not in text
    assert "root:" not in text


def test_a_replay_is_shown_without_scripts_and_with_an_origin_of_its_own(client: httpx.Client, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "replays").mkdir()
    (tmp_path / "runs" / "a" / "replays" / "epoch 3.html").write_text("<h1>replay</h1>")
    assert 'href="/run/a/replays/epoch%203.html"' in client.get("/run/a").text
    answer = client.get("/run/a/replays/epoch%203.html")
    assert answer.text == "<h1>replay</h1>"
    assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")


# -- the list of runs ---------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_state_task_and_newest_numbers(client: httpx.Client, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "done")
    make_run(tmp_path / "runs" / "broken", end="run/failed")
    make_run(tmp_path / "runs" / "going", end=None)
    make_run(tmp_path / "runs" / "dead", end=None)
    os.utime(tmp_path / "runs" / "dead" / "heartbeat", (1.0, 1.0))
    (tmp_path / "runs" / "done" / "config.json").write_text('{"task": "arithmetic"}')
    rows = {row.partition('"')[0]: row for row in client.get("/").text.split('<tr id="run-')[1:]}
    assert set(rows) == {"done", "broken", "going", "dead"}
    for name, state in {"done": "finished", "broken": "failed", "going": "running", "dead": "stopped"}.items():
        assert f'class="state {state}"' in rows[name]
    for shown in (">arithmetic<", ">3<", ">20<", ">0.05<"):
        assert shown in rows["done"]


def test_the_filter_keeps_runs_with_all_its_words_and_those_that_are_compared(
    client: httpx.Client, tmp_path: Path
) -> None:
    for name, end in {"cart-a": "run/completed", "cart-b": "run/failed", "sums": "run/completed"}.items():
        make_run(tmp_path / "runs" / name, end=end)

    def shown(**query: str) -> set[str]:
        return {row.partition('"')[0] for row in client.get("/", params=query).text.split('<tr id="run-')[1:]}

    assert shown(filter="CART") == {"cart-a", "cart-b"}
    assert shown(filter="cart failed") == {"cart-b"}
    assert shown(filter="cart failed", run="sums") == {"cart-b", "sums"}
    assert shown(filter="nothing") == set()


def test_several_runs_are_compared_with_mean_and_std_over_seeds(client: httpx.Client, tmp_path: Path) -> None:
    for name, seed, rate in (("a", 0, 0.1), ("b", 1, 0.1), ("c", 0, 0.5)):
        make_run(tmp_path / "runs" / name, scale=1.0 + seed)
        (tmp_path / "runs" / name / "config.json").write_text(f'{{"seed": {seed}, "rate": {rate}}}')
    text = client.get("/", params={"run": ["a", "b", "c"]}).text
    assert "a, b (mean of 2)" in text
    assert text.count('class="band') == 2  # loss and reward
    assert "<td>rate</td><td>0.1</td><td>0.5</td>" in text
    chosen = client.get("/", params={"run": ["a", "b", "c"], "metric": "time/train"}).text
    assert chosen.count("<svg") == 1
    assert 'value="time/train" selected' in chosen


def test_without_runs_the_page_says_how_to_make_one(client: httpx.Client, tmp_path: Path) -> None:
    assert "hookline train" in client.get("/").text
    (tmp_path / "runs").rmdir()
    assert "hookline train" in client.get("/").text


def test_one_run_can_be_served_alone(serve: Serve, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    make_run(tmp_path / "runs" / "other")
    server = serve(tmp_path / "runs" / "mine")
    with httpx.Client(follow_redirects=True) as browser:
        page = browser.get(server.url).text
        assert 'id="run-mine"' in page
        assert "other" not in page
        assert browser.get(f"http://127.0.0.1:{server.server_port}/run/other").status_code == 404


# -- one run ----------------------------------------------------------------------------------------------------------


def test_a_run_shows_curves_lessons_time_episodes_failures_and_config(client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    make_run(folder)
    (folder / "config.json").write_text('{"task": "sums", "api_key": "planted-key"}')
    (folder / "failures.json").write_text('[{"plugin": "status", "event": "on_epoch_end", "times": 3, "what": "lost"}]')
    write_episode(folder, Turn("user", "two plus two"), Turn("assistant", "five"), Turn("tool", "no"))
    text = client.get("/run/a").text
    for shown in (
        "Loss · train/loss",
        "From unlocked to graduated",
        "Time per phase",
        "<td>status</td><td>on_epoch_end</td><td>lost</td><td>3</td>",
        "<h3>tool</h3>",
        "two plus two",
        "reward 0.5",
        "rejected: verification fails",
        "<h3>expected</h3><pre>four</pre>",
        '<td>manners</td><td class="bad">fail</td>',
        "&quot;task&quot;: &quot;sums&quot;",
    ):
        assert shown in text, shown
    assert "planted" not in text


def test_all_text_of_a_run_is_shown_as_text(client: httpx.Client, tmp_path: Path) -> None:
    name = EVIL.replace("/", "")
    folder = tmp_path / "runs" / name
    make_run(folder)
    sink = SQLiteSink(Run(folder))
    sink.write([Report(20, 2, {EVIL: 1.0, f"eval/{EVIL}/success_rate": 1.0, "run/failed": 1.0}, 2000.0)])
    sink.close()
    (folder / "config.json").write_text('{"task": "<script>alert(2)</script>"}')
    (folder / "failures.json").write_text('[{"plugin": "<script>alert(3)</script>"}, 7]')
    (folder / "status.json").write_text('[{"status": "FAILURE", "message": "<script>alert(4)</script>"}]')
    write_episode(folder, Turn(EVIL, "</pre>" + EVIL), Turn("assistant", "a lone \ud800 surrogate"))
    (folder / "replays").mkdir()
    (folder / "replays" / name).touch()
    link = client.get("/").text.partition('<a href="/run/')[2].partition('"')[0]
    for page in (client.get("/"), client.get("/", params={"run": name, "filter": EVIL}), client.get(f"/run/{link}")):
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
    assert "&lt;script&gt;alert" in page.text
    missing = client.get("/run/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert missing.status_code == 404
    assert "<script>alert" not in missing.text


def corrupt(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)


def wrong_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE numbers SET value = 'three'")


def wrong_epochs_and_times(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE reports SET epoch = 'two', time = 'four'")


def no_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE reports")


@pytest.mark.parametrize("damage", [corrupt, wrong_rows, wrong_epochs_and_times, no_table])
def test_a_damaged_database_is_a_message_and_other_runs_are_shown(
    client: httpx.Client, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    make_run(tmp_path / "runs" / "good")
    make_run(tmp_path / "runs" / "bad")
    damage(tmp_path / "runs" / "bad" / "stats.sqlite")
    page = client.get("/run/bad")
    assert page.status_code == 200
    assert 'class="message"' in page.text
    assert "stats.sqlite" in page.text
    both = client.get("/", params={"run": ["good", "bad"]})
    assert both.status_code == 200
    assert 'class="state unreadable"' in both.text
    assert "Comparison" in both.text
    assert "Traceback" not in page.text + both.text


def test_a_run_with_impossible_times_or_a_name_that_is_no_text_is_shown(client: httpx.Client, tmp_path: Path) -> None:
    name = os.fsdecode(b"odd\xff&name")
    make_run(tmp_path / "runs" / name)
    with closing(sqlite3.connect(tmp_path / "runs" / name / "stats.sqlite")) as connection, connection:
        connection.execute("UPDATE reports SET time = 1e300")
    (tmp_path / "runs" / name / "replays").mkdir()
    (tmp_path / "runs" / name / "replays" / os.fsdecode(b"\xfe.txt")).write_text("replayed")
    listed = client.get("/")
    assert listed.status_code == 200
    page = client.get("/run/odd%FF%26name")
    assert "train/loss" in page.text
    assert '<a href="/run/odd%FF%26name">' in listed.text
    assert client.get("/run/odd%FF%26name/replays/%FE.txt").text == "replayed"


def test_a_run_that_is_gone_is_a_message(client: httpx.Client, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    assert client.get("/run/a").status_code == 200
    for path in (tmp_path / "runs" / "a").iterdir():
        path.unlink()
    page = client.get("/run/a")
    assert page.status_code == 404
    assert "There is no run &#x27;a&#x27; (any more)." in page.text


def test_a_run_that_is_being_written_is_shown_up_to_its_last_step(client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    make_run(folder, steps=3, end=None)
    writer = SQLiteSink(Run(folder))
    tags = []
    for step in (4, 5):
        writer.write([Report(step, 0, {"train/loss": step * 1.5}, 1000.0 + step)])
        page = client.get("/run/a")
        assert f"last {step * 1.5:g}" in page.text
        tags.append(page.headers["ETag"])
    assert tags[0] != tags[1]
    unchanged = client.get("/run/a", headers={"If-None-Match": tags[1]})
    assert unchanged.status_code == 304
    assert unchanged.content == b""
    writer.close()


def test_a_locked_database_is_a_message(client: httpx.Client, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    path = tmp_path / "runs" / "a" / "stats.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("INSERT INTO reports(step, time) VALUES (1, 1)")
        page = client.get("/run/a")
        other.execute("ROLLBACK")
    assert page.status_code == 200
    assert "locked" in page.text


def test_an_address_that_cannot_be_read_is_refused(client: httpx.Client) -> None:
    many = "&".join(["run=a"] * 2000)
    for path in ("http://[::1/", f"/?{many}"):
        with socket.create_connection(("127.0.0.1", client.base_url.port)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_what_is_not_http_ends_the_connection_and_nothing_else(client: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        assert connection.recv(1000) == b"Bad Request\n"
    assert client.get("/").status_code == 200


# -- the command --------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_opens_its_url_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    (tmp_path / "browser").write_text('#!/bin/sh\necho "$1" > opened\n')
    (tmp_path / "browser").chmod(0o755)
    command = [sys.executable, "-m", "hookline", "serve", "--port", "0", "--open"]
    environ = {**os.environ, "BROWSER": f"{tmp_path / 'browser'} %s"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = (process.stdout or sys.stdin).readline().strip()
        with httpx.Client(follow_redirects=True) as browser:
            assert 'id="run-a"' in browser.get(url).text
            process.send_signal(signal.SIGINT)  # while a connection is open
            _, errors = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == ""
    assert (tmp_path / "opened").read_text().strip() == url


def test_a_port_in_use_is_said_so(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    port = urlsplit(serve(tmp_path).url).port
    for taken, reason in ((port, "it is in use"), (70_000, "0-65535")):
        with pytest.raises(SystemExit):
            main(["serve", "--port", str(taken)])
        said = " ".join(capsys.readouterr().err.split())
        assert f"port {taken} cannot be used: " in said
        assert reason in said
        assert "--port 0 takes a free one" in said


def test_a_folder_that_is_not_there_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["serve", "nowhere"])
    assert "there is no run 'nowhere'" in capsys.readouterr().err
