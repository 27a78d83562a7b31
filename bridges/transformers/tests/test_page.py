"""The page of documentation is true: its script runs."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from tiny_trainers import Recorded, arguments, tiny_model, tiny_tokenizer

PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"
README = Path(__file__).parents[1] / "README.md"


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not PAGE.exists(), reason="the tests lie apart from the page, as where wheels are tried")
def test_the_whole_script_trains_and_leaves_a_run(folder: Path) -> None:
    _, script = blocks(PAGE)
    exec(compile(script, str(PAGE), "exec"), {"__name__": "__main__"})
    assert Recorded(folder / "runs" / "sums")["train/reward"].keys() == {1, 2, 3, 4}


@pytest.mark.skipif(not PAGE.exists(), reason="the tests lie apart from the page, as where wheels are tried")
def test_the_snippet_is_a_run(folder: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    snippet, _ = blocks(PAGE)
    assert blocks(README) == [snippet]
    names = {
        "SFTTrainer": partial(SFTTrainer, processing_class=tiny_tokenizer()),
        "model": tiny_model(),
        "args": SFTConfig(**arguments(folder, max_steps=1, logging_steps=1, bf16=False, max_length=32)),
        "dataset": Dataset.from_dict({"text": [f"{number} and {number}" for number in range(8)]}),
    }
    exec(snippet, names)
    assert Recorded(folder / "runs" / "mine")["train/loss"].keys() == {1}
