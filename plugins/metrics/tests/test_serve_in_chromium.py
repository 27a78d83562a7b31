"""The live pages in a real browser. `apt-get install chromium chromium-driver` and `pip install selenium` get it."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline_hookspecs import Episode
from hookline_hookspecs.sinks import Report, Run
from hookline_metrics.episodes import EpisodeLog
from hookline_metrics.serve import RunServer
from hookline_metrics.sinks.sqlite import SQLiteSink

HOW = "no headless browser: apt-get install chromium chromium-driver, and pip install selenium"
webdriver = pytest.importorskip("selenium.webdriver", reason=HOW)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip(HOW, allow_module_level=True)

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Without its sandbox, since tests may run as root in a container.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


class Browser:
    """A window on the server of a folder."""

    def __init__(self, driver: Any, server: RunServer) -> None:
        self.driver = driver
        self.server = server
        driver.get(server.url)

    def open(self, path: str) -> None:
        self.driver.get(f"http://127.0.0.1:{self.server.server_port}{path}")

    def resize(self, width: int, *, scheme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def go_offline(self, offline: bool) -> None:
        self.driver.execute_cdp_cmd("Network.enable", {})
        conditions = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def text(self, selector: str = "main") -> str:
        found: str = self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return found

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true; a page updates itself every two seconds."""
        WebDriverWait(self.driver, 20, poll_frequency=0.1).until(lambda _: condition())

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, selector: str) -> None:
        """Reach an element by the tab key alone."""
        for _ in range(60):
            if self.run(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the tab key does not reach {selector}")


@pytest.fixture
def browser(chromium: Any, tmp_path: Path) -> Iterator[Browser]:
    """A window on `runs/` in the test's folder. The test fails if the page logs a warning or an error."""
    (tmp_path / "runs").mkdir()
    server = RunServer(tmp_path / "runs")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    own = Browser(chromium, server)
    own.resize(1200)
    yield own
    assert chromium.get_log("browser") == []
    chromium.get("about:blank")
    server.shutdown()
    server.server_close()


class GrowingRun:
    """A run that is going on: its numbers come when the test says so."""

    def __init__(self, folder: Path, *, seed: int = 0, rate: float = 0.1) -> None:
        self.folder, self.seed, self.step = folder, seed, 0
        self.sink = SQLiteSink(Run(folder))
        self.sink.write([Report(0, None, {"run/started": 1.0}, 1000.0)])
        (folder / "config.json").write_text(json.dumps({"task": "sums", "seed": seed, "rate": rate}))
        (folder / "heartbeat").touch()
        self.episodes = EpisodeLog(8)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            numbers = {"train/loss": (1 + self.seed) / self.step, "curriculum/sums/unlocked": 1.0, "time/train": 1.0}
            self.sink.write([Report(self.step, self.step // 10, numbers, 1000.0 + self.step)])

    def say(self, prompt: str, response: str) -> None:
        self.episodes._due.clear()
        self.episodes.hold(self.step, 0, "sums", [Episode(prompt, response, reward=0.5)])
        self.episodes.release()
        self.episodes.write(self.folder)


def test_a_run_that_goes_on_appears_and_grows(browser: Browser, tmp_path: Path) -> None:
    assert "no runs here yet" in browser.text()
    run = GrowingRun(tmp_path / "runs" / "first")
    run.train(5)
    browser.until(lambda: "running" in browser.text("#run-first"))
    browser.open("/run/first")
    run.say("1+1=", "<script>document.title = 'hacked'</script>")
    browser.until(lambda: "1+1=" in browser.text("#newest-episodes"))
    browser.run("document.querySelector('.episode summary').click()")
    browser.run("document.querySelector('.episode summary').focus()")
    line = "document.querySelector('#learning svg path.line').getAttribute('d')"
    before = browser.run(line)
    run.train(30)
    run.say("2+2=", "4")
    browser.until(lambda: "2+2=" in browser.text("#newest-episodes"))
    browser.until(lambda: "35" in browser.text(".tiles") and browser.run(line) != before)
    # What the reader has opened and where the reader is stay, though a newer episode is above it now.
    assert browser.run("document.querySelector('.episode[open]').innerText").count("1+1=") == 2
    assert "1+1=" in browser.run("document.activeElement.innerText")
    assert "<script>document.title = 'hacked'</script>" in browser.text(".episode[open] .own")
    assert browser.run("document.title") == "first · Hookline"
    run.sink.write([Report(run.step, 3, {"run/completed": 1.0}, 2000.0)])
    browser.until(lambda: "finished" in browser.text("h1"))
    assert browser.text("#live").startswith("live")
    run.sink.close()


def test_runs_are_chosen_filtered_and_compared_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    for name, seed, rate in (("a0", 0, 0.1), ("a1", 1, 0.1), ("b0", 0, 0.5), ("other", 0, 0.9)):
        run = GrowingRun(tmp_path / "runs" / name, seed=seed, rate=rate)
        run.train(5)
        run.sink.close()
    browser.open("/")
    browser.tab_to("input[type=search]")
    browser.press("0")
    browser.until(lambda: not browser.text("#run-a1") and browser.text("#run-a0"))
    assert browser.run("document.activeElement.value") == "0"
    browser.press(Keys.BACKSPACE)
    browser.until(lambda: browser.text("#run-a1"))
    for name in ("b0", "a1", "a0"):  # the order of the list
        browser.tab_to(f"input[value={name}]")
        browser.press(Keys.SPACE)
        browser.until(lambda name=name: name in browser.text("#comparison .card"))
    browser.until(lambda: "a0, a1 (mean of 2)" in browser.text("#comparison"))
    assert browser.run("document.querySelectorAll('#comparison .band').length") == 1
    assert "rate" in browser.text("#comparison table")
    browser.tab_to("#comparison svg.chart")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "step 2" in browser.text(".tip")
    assert "a0, a1 (mean of 2) 0.75 ± 0.3536" in browser.text(".tip")
    address = browser.driver.current_url
    browser.driver.refresh()
    browser.until(lambda: "a0, a1 (mean of 2)" in browser.text("#comparison"))
    assert browser.driver.current_url == address
    browser.tab_to("a[href='/run/a0']")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.text("h1").startswith("a0"))


def test_pages_fit_a_phone_in_dark_and_light(browser: Browser, tmp_path: Path) -> None:
    name = "a-run-with-a-name-that-is-much-longer-than-any-phone-is-wide-0123456789-0123456789"
    run = GrowingRun(tmp_path / "runs" / name)
    run.train(5)
    run.say("x" * 300, "word " * 300)
    GrowingRun(tmp_path / "runs" / "two", rate=0.5).train(5)
    (run.folder / "failures.json").write_text(json.dumps([{"plugin": "status", "what": "y" * 300, "times": 3}]))
    papers = set()
    for width, scheme in ((390, "dark"), (320, "light")):
        browser.resize(width, scheme=scheme)
        for path in ("/", f"/?run={name}&run=two", f"/run/{name}"):
            browser.open(path)
            browser.run("document.querySelectorAll('details').forEach((block) => { block.open = true; })")
            wide = browser.run(
                "[...document.querySelectorAll('main *, nav *')]"
                f".filter((own) => own.getBoundingClientRect().right > {width} && !own.closest('.scroll, pre'))"
                ".map((own) => own.outerHTML.slice(0, 100))"
            )
            assert wide == []
            assert browser.run("document.documentElement.scrollWidth") <= width
        papers.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_a_page_says_so_when_its_run_or_its_server_is_gone(browser: Browser, tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "runs" / "first")
    run.train(5)
    run.sink.close()
    browser.open("/run/first")
    (run.folder / "stats.sqlite").write_bytes(b"no database at all" * 100)
    browser.until(lambda: "cannot be read" in browser.text())
    shutil.rmtree(run.folder)
    browser.until(lambda: "There is no run 'first' (any more)." in browser.text())
    browser.driver.delete_all_cookies()  # as after a restart of the server, which has a new token
    browser.until(lambda: "The token is missing or wrong" in browser.text("#live"))
    browser.driver.get(browser.server.url)
    browser.go_offline(True)
    browser.until(lambda: "does not answer" in browser.text("#live"))
    browser.go_offline(False)
    browser.until(lambda: browser.text("#live").startswith("live"))
    logged = [entry["message"] for entry in browser.driver.get_log("browser")]
    assert all("Failed to load resource" in message for message in logged)  # the browser's own words for it
