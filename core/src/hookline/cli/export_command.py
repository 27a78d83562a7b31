"""`hookline export`: a run's Hugging Face policy as a folder that `from_pretrained` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from hookline import parsing

__all__ = ["export"]


def export(
    run: Path,
    folder: Path,
    /,
    *,
    checkpoint: str | None = None,
    merge: Annotated[bool, parsing.Parameter(negative="")] = False,
) -> None:
    """Write a run's Hugging Face policy, with its tokenizer, as a folder that `from_pretrained` loads.

    Parameters
    ----------
    run
        The folder of the run.
    folder
        A new or empty folder.
    checkpoint
        The name of a checkpoint, such as `epoch-000009`. By default the newest.
    merge
        Add LoRA adapters to the base model, and write a whole model. Otherwise the adapters are written as peft does.
    """
    from hookline.training.export import export_policy

    print(export_policy(run, folder, checkpoint=checkpoint, merge=merge))
