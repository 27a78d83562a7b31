"""Runs with a secret planted in every place that one can be in: none of them is in what a run writes, sends or prints."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

for distribution in ("metrics", "checkpoint", "evaluation", "status", "verifiers"):
    pytest.importorskip(f"hookline_{distribution}")

HOOKLINE = str(Path(sys.executable).with_name("hookline"))

OPTIONS = {
    "argument": "hush/arg+01",
    "variable": "hush-env-02",
    "nested": "hush-nested-03",
    "url password": "hush@url:04",
    "url parameter": "hush&query=05",
    "endpoint": "hush-endpoint-06",
    "declared": "hush-declared-07",
    "passphrase": "hush 'quoted' \"phrase\" 08",
    "number": "4815162342",
    "lines": "hush-first-line-09\nhush-second-line-10",
    "config": "hush-config-11",
    "made broken": "hush-broken-12",
}
ENVIRON = {
    "PGPASSWORD": "hush-pg-21",
    "DB_PASS": "hush-pass-22",
    "X_AUTH": "hush-auth-23",
    "OPENAI_KEY": "hush-key-24",
    "DATABASE": "postgres://me:hush-db-25@db/x",
    "HOOKLINE_STATUS_TOKEN": "hush-status-26",
    "WANDB_API_KEY": "0123456789abcdef" * 2 + "hushhush",
}
SECRETS = [
    *(line for secret in OPTIONS.values() for line in secret.splitlines()),
    *(secret for secret in ENVIRON.values() if "://" not in secret),
    "hush-db-25",
]

PLUGIN = '''
import json, logging, os, sys, threading
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel, SecretStr

from hookline_hookspecs import Episode, EvaluationResult, hookimpl


class Options(BaseModel):
    api_key: str = ""
    auth: dict[str, Any] = {}
    service: str = ""
    plain: SecretStr = SecretStr("")
    passphrase: str = ""
    pin_secret: int = 0
    private_key: str = ""


class BrokenOptions(BaseModel):
    token: str = ""


class Broken:
    def __init__(self, options: BrokenOptions) -> None:
        raise ValueError(f"refused {options.token}")


class Leaky:
    def __init__(self, options: Options) -> None:
        self.options = options

    def words(self) -> str:
        """All that this plugin knows, as a careless message has it."""
        own = self.options
        known = [own.plain.get_secret_value(), own.api_key, own.service, own.private_key, own.pin_secret, own]
        known += [own.auth, json.dumps(own.auth), own.passphrase, json.dumps(own.passphrase), dict(os.environ)]
        return " | ".join(map(str, known))

    @hookimpl
    def register_commands(self):
        return {"leak": leak}

    @hookimpl
    def pre_training_step(self):
        raise RuntimeError(self.words())

    @hookimpl(background=True)
    def on_epoch_start(self):
        raise RuntimeError(self.words())

    @hookimpl
    def on_train_phase_start(self):
        logging.getLogger("hookline.plugins").warning("known: %s", self.words())

    @hookimpl
    def post_training_step(self, report_data):
        report_data["note"] = self.words()

    @hookimpl
    def evaluate_policy(self):
        return EvaluationResult({"eval/score": 1.0}, {"lesson": [Episode("what is known?", self.words())]})

    @hookimpl
    def on_epoch_end(self, state):
        state.config["found"] = self.words()

    @hookimpl
    def save_plugin_state(self):
        return {"known": self.words()}

    @hookimpl
    def on_training_complete(self, state):
        thread = threading.Thread(target=self.fail)
        thread.start()
        thread.join()

    def fail(self):
        raise LookupError(self.words())


def leak(*, fail: bool = False, option: Annotated[tuple[str, ...], Parameter(name="-o")] = ()) -> None:
    from hookline.plugin_manager.settings import read_settings
    from hookline.session import open_session

    logging.basicConfig(level=logging.INFO)
    config = {"learning_rate": 0.1, "client": {"password": "hush-config-11"}}
    settings = read_settings(option_arguments=option)
    with open_session("run", total_epochs=2, config=config, settings=settings) as session:
        for epoch in session.epochs():
            session.begin_train_phase()
            session.begin_step()
            session.end_step({"train/loss": 0.5})
            session.end_train_phase()
            if not fail:
                wait_for_wandb(session.state)
        if fail:
            plugin = session.plugins.get_plugin("leaky")
            raise ConnectionError(f"{plugin.words()} {config}")


def wait_for_wandb(state) -> None:
    import time

    while state.shared["metrics"].get("wandb_run") is None:
        time.sleep(0.05)
'''


class Recorder(ThreadingHTTPServer):
    """An endpoint that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RecordingHandler)
        self.received: list[str] = []


class RecordingHandler(BaseHTTPRequestHandler):
    server: Recorder

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        # The token and the address are this server's own: they have to come here, and nowhere else.
        assert self.headers["authorization"] == f"Bearer {ENVIRON['HOOKLINE_STATUS_TOKEN']}"
        del self.headers["authorization"]
        self.server.received.append(f"{self.headers}\n{body}\n{json.loads(body)}")
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Recorder]:
    with Recorder() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def project(tmp_path: Path, endpoint: Recorder) -> Path:
    """A folder with two careless plugins, and secrets in its settings."""
    (tmp_path / "leaky_plugin.py").write_text(PLUGIN)
    info = tmp_path / "leaky-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hookline]\nleaky = leaky_plugin:Leaky\nbroken = leaky_plugin:Broken\n")
    address = f"http://127.0.0.1:{endpoint.server_port}/status?api_key={OPTIONS['endpoint']}"
    password, parameter = quote(OPTIONS["url password"], safe=""), quote(OPTIONS["url parameter"], safe="")
    (tmp_path / "hookline.toml").write_text(
        f"""
        [plugins.leaky]
        auth = {{ user = "b", list = [{{ value = "{OPTIONS["nested"]}" }}] }}
        service = "https://me:{password}@example.org/x?page=1&access_token={parameter}"
        plain = "{OPTIONS["declared"]}"
        pin_secret = {OPTIONS["number"]}
        private_key = {json.dumps(OPTIONS["lines"])}
        passphrase = {json.dumps(OPTIONS["passphrase"])}
        [plugins.broken]
        token = "{OPTIONS["made broken"]}"
        [plugins.status]
        endpoint = "{address}"
        [plugins.wandb]
        mode = "offline"
        [plugins.mlflow]
        tracking_uri = "sqlite:///{tmp_path}/run/mlflow.db"
        [plugins.metrics]
        csv = true
        jsonl = true
        """
    )
    return tmp_path


def hookline(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without the address of the service that a wandb of another test has started in this process.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environ = {
        **inherited,
        **ENVIRON,
        "HOME": str(project / "home"),
        "PYTHONPATH": str(project),
        "HOOKLINE_DISABLE": "",
        "TRACKIO_DIR": str(project / "run" / "trackio"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HOOKLINE_OPTIONS": f"leaky.auth.header={OPTIONS['variable']}",
    }
    return subprocess.run(
        [HOOKLINE, *arguments], cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=500
    )


def forms(secret: str) -> set[str]:
    """A secret as it is found in text, URLs, JSON, `repr` and base64."""
    plain = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    return plain | {base64.b64encode(secret.encode()).decode().rstrip("=")}


def assert_without_secrets(text: str, where: object) -> None:
    for secret in SECRETS:
        for form in forms(secret):
            assert form not in text, f"{secret!r} is in {where}: {text[max(0, text.index(form) - 300) :][:400]}"
    assert "hush" not in text, f"a part of a secret is in {where}: {text[max(0, text.index('hush') - 300) :][:400]}"


def written_by(folder: Path) -> dict[str, str]:
    """All files in a run's folder as text; what is compressed or in a database besides."""
    found = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        text = content.decode("latin-1") + content.decode("utf-8", "replace")
        if path.suffix == ".sqlite":
            with sqlite3.connect(path) as database:
                text += "\n".join(database.iterdump())
        if path.suffix == ".gz":
            text += gzip.decompress(content).decode("utf-8", "replace")
        found[str(path.relative_to(folder))] = text
    return found


def check_everything(project: Path, endpoint: Recorder, result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert_without_secrets(result.stdout, "the standard output")
    assert_without_secrets(result.stderr, "the standard error")
    files = written_by(project / "run")
    for name, text in files.items():
        assert_without_secrets(text, name)
    assert endpoint.received
    for request in endpoint.received:
        assert_without_secrets(request, "a request")
    return files


def test_no_secret_is_in_what_a_run_writes_sends_and_prints(project: Path, endpoint: Recorder) -> None:
    result = hookline(project, "leak", "-o", f"leaky.api_key={OPTIONS['argument']}")
    assert result.returncode == 0, result.stderr
    files = check_everything(project, endpoint, result)
    wanted = ["config.json", ".lock", "status.json", "stats.sqlite", "metrics.csv", "metrics.jsonl", "report.html"]
    wanted += ["checkpoints/epoch-000001/state.json", "replays/epoch-000001.jsonl", "replays/epoch-000001.html"]
    assert set(wanted) <= files.keys()
    for tracker in ("wandb/*/*.wandb", "mlflow.db", "tensorboard/events.out.tfevents.*", "trackio/hookline*.db"):
        assert any(fnmatch(name, tracker) for name in files), f"{tracker} is not among {sorted(files)}"
    # What there was to leak has come there: everything else is as it was.
    config = json.loads((project / "run" / "config.json").read_text())
    assert config["learning_rate"] == 0.1
    assert config["plugins"]["leaky"]["options"]["auth"]["list"] == [{"value": "********"}]
    assert "example.org/x?page=1&access_token=********" in config["plugins"]["leaky"]["options"]["service"]
    assert "leaky.api_key=********" in files[".lock"]
    assert "broken" in result.stderr
    assert "ValueError: refused ********" in result.stderr
    assert "Plugins with faults" in result.stderr
    assert "known: ********" in result.stderr
    assert result.stderr.count("plugin 'leaky' has a secret in its saved state: it is left out of the checkpoint") == 1
    assert "LookupError: ********" in result.stderr


def test_no_secret_is_in_what_a_failed_run_writes_sends_and_prints(project: Path, endpoint: Recorder) -> None:
    result = hookline(project, "leak", "--fail", "-o", f"leaky.api_key={OPTIONS['argument']}")
    assert result.returncode == 1
    files = check_everything(project, endpoint, result)
    assert "Traceback" in result.stderr
    assert "ConnectionError: ******** | ********" in result.stderr
    assert "ConnectionError: ******** | ********" in files["status.json"]
    assert "ConnectionError: ******** | ********" in files["report.html"]
    assert any("on_training_failed" in request and "********" in request for request in endpoint.received)


def test_plugins_are_listed_without_secrets(project: Path) -> None:
    result = hookline(project, "plugins", "--json")
    assert result.returncode == 0, result.stderr
    listed = {own["name"]: own for own in json.loads(result.stdout)["plugins"]}
    assert listed["leaky"]["options"]["passphrase"] == "********"
    assert listed["broken"]["reason"] == "cannot be constructed: ValueError: refused ********"
    assert_without_secrets(result.stdout + result.stderr, "the list of plugins")


def test_faults_of_options_are_told_without_secrets(project: Path) -> None:
    wrong = {
        "leaky.pin_secret=hush-no-number": "-o leaky.pin_secret: input should be a valid integer, unable to parse",
        "leaky.plain=[1, 'hush-in-a-list']": "-o leaky.plain: input should be a valid string, got [1, '********']",
        "leaky.api_kye=hush-misspelt": "-o leaky.api_kye: unknown key 'api_kye' (did you mean 'api_key'?)",
        "laeky.api_key=hush-misspelt": "-o laeky.api_key: no installed plugin is called 'laeky' (did you mean 'leaky'?)",
        "api_key=hush-no-plugin": "-o api_key: is not of the form PLUGIN.KEY=VALUE",
        "status.endpoint=https://me:hush-me@host/x": "endpoint has a user name or password in it",
    }
    result = hookline(project, "leak", *(word for option in wrong for word in ("-o", option)))
    assert result.returncode == 1
    assert f"the configuration has {len(wrong)} faults" in result.stderr
    for problem in wrong.values():
        assert problem in result.stderr
    assert_without_secrets(result.stdout + result.stderr, "the faults")


def test_the_code_of_the_page_on_secrets_does_what_it_says(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    page = Path(__file__).parents[1] / "docs" / "secrets.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(code, {})
    shown = capsys.readouterr().out
    assert shown == "{'api_key': '********', 'every': 5}\nGET http://host/x?token=******** failed\n"
    assert caplog.messages == ["the tracker is gone: ConnectionError: refused ********"]
