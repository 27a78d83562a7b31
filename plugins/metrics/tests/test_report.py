import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState
from hookline_hookspecs.sinks import Report, Run
from hookline_metrics.report import write_report
from hookline_metrics.report.charts import Curve, line_chart
from hookline_metrics.report.scales import Scale, decimate, format_number, smooth, ticks
from hookline_metrics.sinks.sqlite import SQLiteSink


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps what there is to see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def make_run(folder: Path, steps: int = 40) -> None:
    sink = SQLiteSink(Run(folder))
    sink.write([Report(0, None, {"run/started": 1.0, "curriculum/sums/unlocked": 1.0}, 0.0)])
    for step in range(1, steps + 1):
        numbers = {
            "train/loss": math.nan if step == 7 else 1 / step,
            "rollout/mean_reward": float(step),
            "eval/sums/success_rate": step / steps,
            "eval/products/success_rate": 0.0,
            "curriculum/sums/success": step / steps,
            "rewards/acceptance_rate": step / steps,
            "rewards/episodes": 256.0,
            "rewards/failure_rate/length": 0.1,
            "time/train": 2.0,
            "time/train_share": 0.8,
            "time/rollout": 0.5,
            "time/rollout_share": 0.2,
            "source/staleness": 0.5,
            "source/staleness_max": 1.0,
            "source/trainer_idle_share": 0.1,
            "source/worker_idle_share": 0.3,
            "source/dropped_rollouts": 2.0,
            "system/cpu_percent": 50.0,
            "gradients/norm": 1.0,
            "gradients/actor/norm": 1.0,
            "another/plugin": 1.0,
        }
        if step == 30:
            numbers |= {"curriculum/sums/graduated": 1.0, "curriculum/products/unlocked": 1.0}
        sink.write([Report(step, step // 10, numbers, float(step))])
    sink.write([Report(steps, steps // 10, {"run/completed": 1.0}, steps + 1.0)])
    sink.close()


@pytest.fixture
def page(tmp_path: Path) -> Callable[[], Page]:
    def make() -> Page:
        write_report(tmp_path, tmp_path / "report.html")
        return Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    return make


def test_the_report_shows_all_sections_of_a_run(tmp_path: Path, page: Callable[[], Page]) -> None:
    make_run(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "arithmetic", "trainer": {"epochs": 4}}')
    (tmp_path / "replays").mkdir()
    (tmp_path / "replays" / "epoch 3.jsonl").touch()
    made = page()
    text = f" {' '.join(made.text)} "
    for wanted in (
        "task arithmetic",
        "finished",
        "Loss · train/loss",
        "Reward · rollout/mean_reward",
        "Success per lesson · eval",
        "products",
        "1 of 2 graduated",
        "sums: unlocked at step 0, graduated at step 30",
        "Reward quality",
        "acceptance_rate",
        "Failure rate per verifier",
        "Constant",
        "Time per phase",
        "train",
        "80.0 %",
        "Staleness of rollouts, in versions of the weights",
        "oldest",
        "Idle share",
        "rollouts dropped, because they were too stale",
        " 80 ",
        "Load in percent",
        "gradients/norm",
        "another/plugin",
        "Latest numbers",
        '"epochs": 4',
    ):
        assert wanted in text, wanted
    assert made.links == ["replays/epoch%203.jsonl"]


def test_the_report_needs_nothing_but_itself(tmp_path: Path, page: Callable[[], Page]) -> None:
    make_run(tmp_path)
    assert page().links == []
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"@import|url\(", text)


def test_names_and_messages_of_others_are_shown_and_not_obeyed(tmp_path: Path, page: Callable[[], Page]) -> None:
    folder = tmp_path
    sink = SQLiteSink(Run(folder))
    evil = "<script>alert(1)</script>\"'&"
    sink.write([Report(1, 0, {evil: 1.0, f"curriculum/{evil}/unlocked": 1.0, f"{evil}/a/success_rate": 0.5}, 0.0)])
    sink.write([Report(1, 0, {"run/failed": 1.0}, 0.0)])
    sink.close()
    (folder / "status.json").write_text(json.dumps([{"status": "FAILURE", "message": evil}]))
    (folder / "config.json").write_text(json.dumps({"task": evil}))
    page()
    assert "<script>alert" not in (folder / "report.html").read_text(encoding="utf-8")


def test_secrets_in_files_that_others_wrote_are_not_shown(
    tmp_path: Path, page: Callable[[], Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "planted-in-environment")
    make_run(tmp_path)
    (tmp_path / "config.json").write_text('{"api_key": "planted-in-config", "note": "planted-in-environment"}')
    page()
    assert "planted" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_without_any_number_has_a_report_too(tmp_path: Path, page: Callable[[], Page]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "stopped" in " ".join(page().text)


def test_a_long_run_makes_no_larger_a_report(tmp_path: Path) -> None:
    sizes = []
    for steps in (2_000, 40_000):
        folder = tmp_path / str(steps)
        sink = SQLiteSink(Run(folder))
        sink.write([Report(step, 0, {"train/loss": math.sin(step)}, float(step)) for step in range(steps)])
        sink.close()
        write_report(folder, folder / "report.html")
        sizes.append((folder / "report.html").stat().st_size)
    assert sizes[1] < 1.5 * sizes[0]


def test_the_end_of_a_run_leaves_its_report(
    with_metrics: Callable[..., PluginManager], hookline_state: Callable[..., TrainerState], tmp_path: Path
) -> None:
    manager = with_metrics(report=True)
    state = hookline_state(step=5)
    manager.emit.on_new_training_run(state=state)
    manager.emit.pre_training(state=state, report_data={})
    manager.emit.log_metrics(report_data={"train/loss": 0.5}, step=5)
    manager.emit.on_training_failed(state=state, error=RuntimeError("out of memory"))
    manager.drain()
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "failed" in text
    assert "train/loss" in text


def svg(curves: list[Curve]) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart(curves).partition("</svg>")[0] + "</svg>")


def test_a_gap_in_a_curve_is_a_gap_in_its_line_and_a_lone_point_a_dot() -> None:
    nan = math.nan
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, nan), (3.0, 3.0), (4.0, math.inf), (5.0, 1.0), (6.0, 2.0)]
    drawn = svg([Curve("loss", points)])
    [line] = drawn.findall("path")
    assert line.attrib["d"].count("M") == 2
    assert len(drawn.findall("circle")) == 1


def test_a_single_point_is_shown() -> None:
    drawn = svg([Curve("loss", [(5.0, 3.0)])])
    [dot] = drawn.findall("circle")
    assert 0 < float(dot.attrib["cx"]) < 440
    assert 0 < float(dot.attrib["cy"]) < 214


def test_a_curve_that_never_was_a_number_says_so() -> None:
    assert "no finite value was recorded" in line_chart([Curve("loss", [(1.0, math.nan)])])


def test_decimation_keeps_what_stands_out() -> None:
    points = [(float(x), 1000.0 if x == 5555 else math.sin(x)) for x in range(10_000)]
    kept = decimate(points, 100)
    assert len(kept) <= 200
    assert (5555.0, 1000.0) in kept
    assert kept == sorted(kept)
    assert decimate(points[:50], 100) == points[:50]
    gap = [(float(x), math.nan if 4000 <= x < 6000 else 1.0) for x in range(10_000)]
    assert any(math.isnan(y) for _, y in decimate(gap, 100))


def test_ticks_are_round_and_within() -> None:
    assert ticks(0.0, 10.0, 5) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert ticks(-0.13, 1.02, 4) == pytest.approx([0.0, 0.5, 1.0])
    assert ticks(1e-9, 3e-9, 2) == pytest.approx([1e-9, 2e-9, 3e-9])
    assert ticks(5.0, 5.0, 4) == [5.0]


def test_one_value_has_a_scale_around_it() -> None:
    scale = Scale.around([0.0], 0.0, 100.0)
    assert scale(0.0) == 50.0
    assert Scale.around([1e-300], 0.0, 100.0)(1e-300) == pytest.approx(50.0)


def test_numbers_are_short() -> None:
    given = [0.0, 1.0, 0.123456, 1234.5, 1e6, 2.5e-7, -3.0, math.nan, math.inf, -math.inf]
    assert [format_number(value) for value in given] == [
        "0", "1", "0.1235", "1,234", "1e6", "2.5e-7", "-3", "NaN", "∞", "-∞",
    ]  # fmt: skip


def test_an_average_starts_where_the_values_start_and_skips_what_is_no_number() -> None:
    averaged = smooth([(float(x), math.nan if x == 3 else 5.0) for x in range(200)])
    assert len(averaged) == 199
    assert {round(y, 9) for _, y in averaged} == {5.0}
