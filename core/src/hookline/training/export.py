"""`export_policy`: writes the Hugging Face policy of a run as a folder that `from_pretrained` loads."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hookline.errors import HooklineError
from hookline.importing import require
from hookline.policies import HuggingFacePolicy, LoraConfig, PolicyError
from hookline.session.run_folder import CONFIG, holds_run, read_config

__all__ = ["ExportError", "export_policy"]

CHECKPOINT: Final = re.compile(r"epoch-\d+")
SHARDS: Final = re.compile(r"policy(-\d+-of-\d+)?\.safetensors")


class ExportError(HooklineError):
    """A run's policy cannot be exported."""


def export_policy(run_dir: Path, target: Path, *, checkpoint: str | None = None, merge: bool = False) -> str:
    """Write the policy of a checkpoint, with its tokenizer, to a new or empty folder. Returns what was written.

    A policy with adapters is written as peft writes it, which needs the base model to be loaded.

    :param checkpoint: the name of the checkpoint, such as `epoch-000009`; None for the newest.
    :param merge: add the adapters to the base, and write a whole model.
    """
    policy = _policy_of(run_dir)
    source = _find_checkpoint(run_dir, checkpoint)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} is not an empty folder: choose another one")
    module = policy.torch_module()
    module.load_state_dict(_read_weights(source))
    model, kind = module.model, "the model"
    if policy.lora is not None and merge:
        from hookline.policies.huggingface_torch import merge_adapters

        model, kind = merge_adapters(model), "the model with its adapters merged"
    elif policy.lora is not None:
        base = str(Path(policy.path).resolve()) if Path(policy.path).is_dir() else policy.path
        model.active_peft_config.base_model_name_or_path = base
        kind = f"the adapters for the base model {base}"
    # Under another name first, so that a folder with the name of the target is complete.
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        model.save_pretrained(unfinished)
        tokenizer = _save_tokenizer(policy, unfinished)
        if target.exists():
            target.rmdir()
        unfinished.rename(target)
    except (OSError, ValueError) as error:  # the second for a generation config that contradicts itself
        raise ExportError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return f"{kind} of {source} is in {target}, {tokenizer}"


def _policy_of(run_dir: Path) -> HuggingFacePolicy:
    if not holds_run(run_dir):
        raise ExportError(f"{run_dir} holds no run: there is no {CONFIG} in it")
    trainer = read_config(run_dir).get("trainer")
    path, lora = (trainer.get(name) for name in ("policy", "lora")) if isinstance(trainer, Mapping) else (None, None)
    if not isinstance(path, str):
        raise ExportError(
            f"the run in {run_dir} has no Hugging Face policy, so there is nothing that from_pretrained could load: "
            "read its weights from the checkpoint's policy.safetensors"
        )
    if lora is not None and isinstance(lora["target_modules"], list):
        lora = {**lora, "target_modules": tuple(lora["target_modules"])}
    return HuggingFacePolicy(path, None if lora is None else LoraConfig(**lora))


def _find_checkpoint(run_dir: Path, name: str | None) -> Path:
    # The manifest is written last, so a folder without one is incomplete.
    found = {path.parent.name: path.parent for path in (run_dir / "checkpoints").glob("*/manifest.json")}
    found = {own: path for own, path in found.items() if CHECKPOINT.fullmatch(own)}
    if not found:
        raise ExportError(f"{run_dir} has no checkpoint: hookline-checkpoint saves them, at the ends of epochs")
    if name is None:
        return max(found.values(), key=lambda path: int(path.name.removeprefix("epoch-")))
    if name not in found:
        raise ExportError(f"{run_dir} has no checkpoint {name!r}; it has {', '.join(sorted(found))}")
    return found[name]


def _read_weights(checkpoint: Path) -> dict[str, Any]:
    """The policy's state dict, from files that have the hashes of the manifest."""
    load_file = require("safetensors.torch", "an export").load_file
    weights: dict[str, Any] = {}
    try:
        entries = json.loads((checkpoint / "manifest.json").read_bytes())["files"]
        for name in (name for name in entries if SHARDS.fullmatch(name)):
            with (checkpoint / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entries[name]["sha256"]:
                    raise ExportError(f"{checkpoint / name} is damaged: its hash is not the one in the manifest")
            weights |= load_file(checkpoint / name)
    except (OSError, ValueError, LookupError) as error:
        raise ExportError(f"{checkpoint} cannot be read: {error}") from error
    return weights


def _save_tokenizer(policy: HuggingFacePolicy, folder: Path) -> str:
    try:
        policy.tokenizer().tokenizer.save_pretrained(folder)
    except PolicyError as error:
        return f"without a tokenizer ({error})"
    return "with its tokenizer"
