"""Every event is documented by the contract, and the reference is current."""

from __future__ import annotations

import tomllib
from pathlib import Path

import importlib_metadata
import pytest

from hookline import PluginManager
from hookline.cli import main
from hookline.cli.hooks_command import events_as_markdown
from hookline.cli.plugin_directory import available_plugins, directory_as_markdown
from hookline.plugin_manager.events import EventContract

ROOT = Path(__file__).parents[2]
EVENTS = PluginManager().events
EMITTERS = {"trainer", "rollout worker", "reward processor", "core"} | {
    f"{name} plugin" for name in ("evaluation", "checkpoint", "metrics")
}
PLACES = {"driver": "rank 0, ", "every_rank": "every rank, ", "worker": "every worker process, "}


@pytest.mark.parametrize("name", EVENTS)
def test_the_docstring_says_all_that_the_contract_asks_for(name: str) -> None:
    event, contract = EVENTS[name], EVENTS[name].contract
    wanted = [field for field in EventContract.__dataclass_fields__ if not field.startswith("argument")]
    empty = [field for field in wanted if not getattr(contract, field)]
    assert not empty, f"the docstring does not say: {empty}"
    assert tuple(contract.arguments) == event.arguments
    assert set(contract.emitted_by.rstrip(".").split(", ")) <= EMITTERS
    assert contract.where.startswith(PLACES[event.scope]), "the docstring and the declared scope disagree"
    assert contract.where.endswith("thread.") or "thread that" in contract.where
    assert (contract.returns == "ignored.") == (event.kind == "notify")
    texts = [contract.summary, contract.when, contract.where, contract.returns, *contract.arguments.values()]
    assert all(text.endswith(".") for text in texts), "a text that goes on in the next line is read to its end"


def test_the_event_reference_is_current() -> None:
    page = ROOT / "docs" / "events.md"
    assert page.read_text(encoding="utf-8") == events_as_markdown() + "\n", "run `make docs`"


def test_the_directory_of_plugins_is_current() -> None:
    assert (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8") == directory_as_markdown() + "\n", (
        "run `make docs`"
    )
    packaged = ROOT / "core" / "src" / "hookline" / "cli" / "plugins.toml"
    assert (ROOT / "docs" / "plugins.toml").resolve() == packaged, "one file, so that they cannot differ"


def test_the_directory_has_all_distributions_of_this_repository_as_they_describe_themselves() -> None:
    listed = {entry.name: entry for entry in available_plugins()}
    files = [*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("bridges/*/pyproject.toml")]
    for file in files:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        entry = listed[project["name"]]
        assert entry.summary == project["description"], f"{file}: say the same in docs/plugins.toml"
        assert sorted(entry.plugins) == sorted(project.get("entry-points", {}).get("hookline", {}))
        assert ROOT / entry.home == file.parent
        assert (entry.kind == "bridge") == (not entry.plugins)
        assert ("hookline-plugin" in project.get("keywords", ())) == bool(entry.plugins), "others find plugins by it"


def test_the_directory_shows_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plugins", "--available"])
    heading, *lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert heading == ["install", "kind", "installed", "what it does"]
    assert ["hookline-status", "plugin", importlib_metadata.version("hookline-status")] in [line[:3] for line in lines]
