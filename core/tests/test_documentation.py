"""Every event is documented by the contract, and the reference is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline import PluginManager
from hookline.cli.hooks_command import events_as_markdown
from hookline.plugin_manager.events import EventContract

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
    assert contract.summary.endswith(".")


def test_the_event_reference_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "events.md"
    assert page.read_text(encoding="utf-8") == events_as_markdown() + "\n", "run `make docs`"
