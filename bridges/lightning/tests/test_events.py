"""The moments of a fit, as plugins see them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.testing import check_emitter
from hookline_lightning import HooklineCallback


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("Automatic", {}),
        ("Automatic", {"accumulate_grad_batches": 4}),
        ("Automatic", {"val_check_interval": 2}),
        ("Manual", {}),
        ("TwoOptimizers", {}),
    ],
    ids=["automatic", "accumulation", "validation in the middle", "manual", "two optimizers"],
)
def test_a_fit_keeps_the_promises_of_the_event_contract(
    tiny: ModuleType, tmp_path: Path, module: str, options: dict[str, Any]
) -> None:
    def run(plugin: object) -> None:
        callback = HooklineCallback(plugins={"recorder": plugin})
        tiny.trainer(tmp_path, callback, **options).fit(getattr(tiny, module)(), **tiny.loaders())

    check_emitter(run)
