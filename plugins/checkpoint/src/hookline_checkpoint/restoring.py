"""Restores a run's state from the contents of a checkpoint, or says why they do not fit."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.reading import Loaded
from hookline_checkpoint.tree import split_tree
from hookline_hookspecs import TrainerState
from hookline_hookspecs.errors import error_message

__all__ = ["Part", "as_plain_data", "restore", "state_dict_of"]

logger = logging.getLogger("hookline.checkpoint")

Part = Literal["policy", "optimizer"]

ABSENT: Final = "absent"

IRRELEVANT: Final = ("trainer.run_dir", "trainer.resume", "trainer.task")
"""Keys that may differ: the run's folder may have been moved, and the first start did not resume. The task is compared
by another key."""


def restore(state: TrainerState, loaded: Loaded) -> None:
    """Restore counters, policy, optimizer and scores. `state.epoch` is then the last epoch that is complete."""
    contents = loaded.contents
    _compare_configs(state, loaded)
    _load("policy", state.policy, contents.policy, loaded)
    _load("optimizer", state.optimizer, contents.optimizer, loaded)
    state.epoch, state.step, state.agent_step = contents.epoch, contents.step, contents.agent_step
    state.eval_scores.clear()
    state.eval_scores.update(contents.metrics)
    state.latest_checkpoint_path = loaded.path


def _compare_configs(state: TrainerState, loaded: Loaded) -> None:
    differences = _config_differences(loaded.contents.config, state.config)
    before, now = differences.get("task", ("", ""))
    # A task's name may contain the path of its file, which may have been moved with the run.
    if before.rpartition("/")[2] != now.rpartition("/")[2]:
        raise CheckpointError(
            f"{loaded.path} was saved by a run of the task {before}, but this run's task is {now}: "
            "resume the same task, or give the new run another folder"
        )
    if differences:
        shown = "; ".join(f"{key} was {before}, is {now}" for key, (before, now) in differences.items())
        logger.warning("the run resumes from %s with a different config: %s", loaded.path, shown)


def as_plain_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as strict JSON data. Values that JSON does not have become text."""
    plain: dict[str, Any] = json.loads(json.dumps(config, default=repr), parse_constant=str)
    return plain


def _config_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Each key that differs, as a path, with its value in the checkpoint and in the run."""
    before, now = dict(_leaves(saved)), dict(_leaves(as_plain_data(current)))
    return {
        key: (before.get(key, ABSENT), now.get(key, ABSENT))
        for key in sorted(before.keys() | now.keys())
        if key not in IRRELEVANT and before.get(key, ABSENT) != now.get(key, ABSENT)
    }


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each value that is not a mapping, as JSON, with its path."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), json.dumps(value)


def _load(part: Part, target: Any, saved: Any, loaded: Loaded) -> None:
    path = loaded.path
    if target is None and saved is None:
        return
    if target is None or saved is None:
        has, lacks = ("the checkpoint", "the run") if target is None else ("the run", "the checkpoint")
        raise CheckpointError(f"{path} does not fit this run: {has} has a {part}, {lacks} has none")
    if _is_several(target):
        if not isinstance(saved, Mapping) or saved.keys() != target.keys():
            raise CheckpointError(
                f"{path} does not fit this run: the run has the {part}s {', '.join(target)}, and the checkpoint has "
                f"{', '.join(map(str, saved))}"
            )
        for name in target:
            _load(part, target[name], saved[name], loaded)
        return
    if not callable(getattr(target, "load_state_dict", None)):
        raise CheckpointError(f"state.{part} is a {type(target).__name__} without load_state_dict(): it cannot resume")
    what_to_do = "resume with the config it was saved with, or start a new run in another folder"
    mismatches = _mismatched_shapes(state_dict_of(part, target), saved)
    if mismatches:
        raise CheckpointError(f"{path} does not fit this run's {part}: {'; '.join(mismatches)}; {what_to_do}")
    try:
        target.load_state_dict(saved)
    except Exception as error:
        raise CheckpointError(f"{path} does not fit this run's {part}: {error_message(error)}; {what_to_do}") from error


def _mismatched_shapes(current: Any, saved: Any) -> list[str]:
    """The arrays that both have in different shapes. `load_state_dict` reports missing ones."""
    now, before = split_tree(current, "it")[0], split_tree(saved, "it")[0]
    return [
        f"{name} has the shape {tuple(before[name].shape)} in the checkpoint and {tuple(now[name].shape)} in this run"
        for name in now
        if name in before and tuple(before[name].shape) != tuple(now[name].shape)
    ]


def state_dict_of(part: Part, source: Any) -> Any:
    """The `state_dict()` of a policy or an optimizer; by name for a mapping of several."""
    if source is None:
        return None
    if _is_several(source):
        return {name: state_dict_of(part, own) for name, own in source.items()}
    if not callable(getattr(source, "state_dict", None)):
        raise CheckpointError(f"state.{part} is a {type(source).__name__} without state_dict(): it cannot be saved")
    return source.state_dict()


def _is_several(source: Any) -> bool:
    """Whether these are several by name."""
    return isinstance(source, Mapping) and not hasattr(source, "state_dict")
