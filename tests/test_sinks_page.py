"""What docs/sinks.md shows works as it stands."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import check_plugin, check_sink
from hookline_hookspecs import ReplayRecord, TrainerState
from hookline_metrics import Metrics, Options

PAGE = Path(__file__).parents[1] / "docs" / "sinks.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
[PLUGIN, TEST] = [text for language, text in BLOCKS if language == "python"]
[PROJECT] = [text for language, text in BLOCKS if language == "toml"]


@pytest.fixture
def _my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_package", raising=False)


@pytest.mark.usefixtures("_my_package")
def test_the_page_has_a_sink_that_works_in_a_run(tmp_path: Path) -> None:
    module, _, name = tomllib.loads(PROJECT)["project"]["entry-points"]["hookline"]["printed"].partition(":")
    package = __import__(module)
    with PluginManager() as manager:
        manager.register(Metrics(Options(progress="off", report=False, system_every=0), manager.emit), "metrics")
        manager.register(getattr(package, name)(package.Options()), "printed")
        state = TrainerState(run_dir=tmp_path / "run", step=3)
        manager.emit.on_new_training_run(state=state)
        manager.emit.log_metrics(report_data={"train/loss": 0.5}, step=3)
        (tmp_path / "epoch-000001.jsonl").write_text("{}\n")
        manager.emit.on_replay_saved(state=state, replay=ReplayRecord(tmp_path / "epoch-000001.jsonl"))
        manager.emit.on_training_complete(state=state)
        assert manager.drain() == []
        assert not manager.faults
    assert (tmp_path / "run" / "printed.txt").read_text() == "3 {'train/loss': 0.5}\n3 {'run/completed': 1.0}\n"
    assert (tmp_path / "run" / "printed.txt.epoch-000001.jsonl").exists()


@pytest.mark.usefixtures("_my_package")
def test_the_pages_own_test_passes_and_its_plugin_is_a_good_one() -> None:
    scope: dict[str, object] = {}
    exec(TEST, scope)
    scope["test_it_has_a_good_sink"]()  # type: ignore[operator]
    from my_package import Printed  # type: ignore[import-not-found]

    check_plugin(Printed)
    check_sink(Printed)
