"""What TensorBoard and trackio show of a run, in headless Chromium, without internet."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import Episode, HookContext, Rollout, TrainerState
from hookline_metrics import Metrics, Options

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="there is no Chromium: apt-get install chromium chromium-driver"
)

# All text of a page, also that of components with a DOM of their own.
ALL_TEXT = """
const texts = [];
const visit = node => {
    if (node.nodeType === Node.TEXT_NODE) texts.push(node.data);
    if (node.shadowRoot) visit(node.shadowRoot);
    if (!["STYLE", "SCRIPT"].includes(node.nodeName)) node.childNodes.forEach(visit);
};
visit(document.body);
return texts.join(" ");
"""


RECORD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hookline_trackio import Options, Trackio
from test_trackers_in_a_browser import record_run
record_run(Path(sys.argv[2]), Trackio(Options()), "trackio")
"""
"""In a process of its own, since trackio reads its folder from the environment when it is imported."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1200"):
        options.add_argument(argument)
    # No other host than this one can be reached.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@contextmanager
def serving(*command: str, **environ: str) -> Iterator[str]:
    """Start a tracker's server. Its address is what it prints first."""
    server = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
    )
    try:
        assert server.stdout is not None
        found = None
        printed = ""
        while found is None:
            line = server.stdout.readline()
            assert line, f"the server has ended: {printed}"
            printed += line
            found = re.search(r"http://(?:127\.0\.0\.1|localhost):\d+[^\s\x1b]*", line)
        yield found[0]
    finally:
        server.kill()
        server.communicate()


def wait_for(browser: Any, *texts: str) -> None:
    """Wait until the page shows all these texts."""
    shown = ""
    for _ in range(600):
        shown = browser.execute_script(ALL_TEXT)
        if all(text in shown for text in texts):
            return
        time.sleep(0.1)
    pytest.fail(f"the page has not all of {texts}: {shown}")


def record_run(folder: Path, tracker: Any, name: str) -> None:
    """A run of a hundred steps with a sample of text."""
    with PluginManager() as manager:
        manager.register(Metrics(Options(progress="off", report=False, system_every=0), manager.emit), "metrics")
        manager.register(tracker, name)
        state = TrainerState(run_id="my-run", run_dir=folder, config={"learning_rate": 0.125})
        manager.emit.on_new_training_run(state=state)
        for state.step in range(1, 101):
            manager.emit.log_metrics(report_data={"train/loss": 1 / state.step}, step=state.step)
        rollout = Rollout(episodes=[Episode("What is 2 + 3?", "It is five.", reward=1.0)])
        manager.emit.on_rollout_end(context=HookContext(lesson_id="sums"), rollout=rollout)
        manager.emit.on_epoch_end(state=state)
        manager.emit.on_training_complete(state=state)
        assert manager.drain(60) == []
        assert not manager.faults


def test_tensorboard_shows_the_curve_the_samples_and_the_hyperparameters(tmp_path: Path, browser: Any) -> None:
    tensorboard = pytest.importorskip("hookline_tensorboard")
    record_run(tmp_path / "my-run", tensorboard.TensorBoard(tensorboard.Options()), "tensorboard")
    command = ("-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", "0", "--host", "127.0.0.1")
    with serving(*command, "--load_fast", "false") as address:
        browser.get(f"{address}?tagFilter=train#timeseries")
        wait_for(browser, "/loss", "my-run/tensorboard", "0.01")
        browser.get(f"{address}#text")
        wait_for(browser, "samples/sums", "What is 2 + 3?", "It is five.", "reward 1")
        browser.get(f"{address}#hparams")
        wait_for(browser, "learning_rate", "0.125")


def test_trackio_shows_the_curve_and_the_conversation(tmp_path: Path, browser: Any) -> None:
    pytest.importorskip("hookline_trackio")
    recorded = subprocess.run(
        [sys.executable, "-c", RECORD, str(Path(__file__).parent), str(tmp_path / "my-run")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"},
    )
    assert recorded.returncode == 0, recorded.stderr
    command = ("-m", "trackio.cli", "show", "--project", "hookline")
    with serving(*command, TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1") as address:
        browser.get(address)
        wait_for(browser, "my-run", "train (1)", "loss")
        browser.find_element("xpath", "//*[normalize-space(text())='Traces']").click()
        wait_for(browser, "What is 2 + 3?", "It is five.")
