"""The examples of conversations train for a moment. `benchmarks/conversations.py` measures what they learn."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import hookline
from hookline.plugin_manager.settings import Settings
from hookline.training.warm_start import WarmStart

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("example", "task", "scored"),
    [("calculator_tool", "calculator", {"solved", "called"}), ("guess_the_number", "game", {"won"})],
)
def test_an_example_warm_starts_and_trains_by_grpo(
    example: str, task: str, scored: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    module: Any = importlib.import_module(example)

    def short(dataset: Any, *, until: dict[str, float], **fields: Any) -> WarmStart:
        """A warm start of one epoch, whatever it leads to."""
        return replace(WarmStart(dataset, until=dict.fromkeys(until, 0.0), **fields), steps_per_epoch=2, n_examples=4)

    monkeypatch.setattr(module, "WarmStart", short)
    small = ["rollout.num_environments=2", "rollout.samples_per_prompt=2", "rollout.minibatches=1"]
    trainer = hookline.train(getattr(module, task), epochs=3, assignments=small, settings=Settings(allowed={}), seed=1)
    assert trainer.worker is not None
    assert trainer.worker.step == 2, "rollouts, after the epoch of the warm start"
    assert trainer.state.rollout_stats["rollout/failed"] == 0
    assert trainer.state.rollout_stats["rollout/mean_turns"] >= 1
    scores = module.scores(trainer.worker, n_examples=4)
    assert set(scores) == scored
    assert all(0 <= score <= 1 for score in scores.values())
