"""The plugin: when a checkpoint is saved, what goes into it, and how a run goes on from one."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.store import Contents, find_checkpoints, newest_valid, prune, write_checkpoint
from hookline_hookspecs import CheckpointRecord, Emit, TrainerState, hookimpl

__all__ = ["Checkpoint", "Options"]

logger = logging.getLogger("hookline.checkpoint")


@dataclass(frozen=True)
class Options:
    """What the user can say of checkpoints."""

    keep_last: int = 3
    """How many of the newest checkpoints to keep."""
    resume: bool = False
    """Go on from the newest valid checkpoint of the run's folder, when there is one."""

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, got {self.keep_last}")


class Checkpoint:
    """Saves the run at its schedule and at its end, and resumes it when asked.

    A failure to save ends the run: who counts on checkpoints wants to know at once.
    """

    critical = True
    after = ("evaluation",)  # a checkpoint carries the scores of its own epoch

    def __init__(self, options: Options, emit: Emit) -> None:
        self.options = options
        self._emit = emit
        self._latest: CheckpointRecord | None = None

    @hookimpl(scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        """Keep a new run from mixing its checkpoints with those of another."""
        self._latest = None
        if state.run_dir is None:
            logger.warning("the run has no folder, so no checkpoints are saved")
            return
        existing = find_checkpoints(_folder(state.run_dir))
        if existing and not self.options.resume:
            raise CheckpointError(
                f"{existing[0].parent} holds checkpoints of an earlier run, the newest {existing[0].name}: "
                "resume that run with the option checkpoint.resume=true, or give the new run another folder"
            )

    @hookimpl
    def restore_training_run(self, state: TrainerState) -> CheckpointRecord | None:
        """Put the newest valid checkpoint into the state.

        `state.epoch` is then the last epoch that is complete; training goes on with the one after it.
        """
        if not self.options.resume or state.run_dir is None:
            return None
        found, skipped = newest_valid(_folder(state.run_dir))
        for error in skipped:
            logger.warning("skipped an invalid checkpoint: %s", error)
        if found is None:
            if skipped:
                raise CheckpointError(
                    f"none of the {len(skipped)} checkpoints in {_folder(state.run_dir)} is valid, the newest for this "
                    f"reason: {skipped[0]}; restore them from elsewhere, or begin anew in another folder"
                )
            logger.info("there is no checkpoint in %s: the run begins anew", _folder(state.run_dir))
            return None
        path, contents = found
        _load("policy", state.policy, contents.policy, path)
        _load("optimizer", state.optimizer, contents.optimizer, path)
        state.epoch, state.step, state.agent_step = contents.epoch, contents.step, contents.agent_step
        state.latest_checkpoint_path = path
        record = _record(path, contents, sum(file.stat().st_size for file in path.iterdir()))
        self._latest = record
        logger.info("resumed from %s: epoch %d is complete, step %d", path, contents.epoch, contents.step)
        self._emit.load_plugin_state(state=state, saved=contents.plugins)
        self._emit.on_checkpoint_restored(state=state, checkpoint=record)
        return record

    @hookimpl(every=10, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self._save(state)

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._save(state)

    def _save(self, state: TrainerState) -> None:
        if state.run_dir is None or self._is_saved(state):
            return
        folder = _folder(state.run_dir)
        contents = self._take(state)
        path, size = write_checkpoint(folder, contents)
        try:
            prune(path, self.options.keep_last)
        except OSError as error:
            logger.warning("older checkpoints in %s cannot be removed: %s", folder, error)
        self._latest = _record(path, contents, size)
        state.latest_checkpoint_path = path
        self._emit.on_checkpoint_saved(state=state, checkpoint=self._latest)

    def _is_saved(self, state: TrainerState) -> bool:
        return self._latest is not None and (self._latest.epoch, self._latest.step) == (state.epoch, state.step)

    def _take(self, state: TrainerState) -> Contents:
        return Contents(
            run_id=state.run_id,
            epoch=state.epoch,
            step=state.step,
            agent_step=state.agent_step,
            metrics=_finite(state.eval_scores),
            policy=_state_dict("policy", state.policy),
            optimizer=_state_dict("optimizer", state.optimizer),
            plugins=_plugin_states(self._emit.save_plugin_state(state=state).items()),
        )


def _folder(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def _record(path: Path, contents: Contents, size: int) -> CheckpointRecord:
    return CheckpointRecord(
        path=path, epoch=contents.epoch, step=contents.step, size_bytes=size, metrics=dict(contents.metrics)
    )


def _finite(scores: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(score) for name, score in scores.items() if isinstance(score, Real) and math.isfinite(score)}


def _plugin_states(returned: list[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = {}
    for plugin, saved in returned:
        try:
            json.dumps(saved, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"plugin {plugin!r} returned from save_plugin_state what JSON cannot hold: {error}"
            ) from error
        states.setdefault(plugin, {}).update(saved)
    return states


Part = Literal["policy", "optimizer"]


def _state_dict(part: Part, source: Any) -> Any:
    if source is None:
        return None
    if not callable(getattr(source, "state_dict", None)):
        raise CheckpointError(f"state.{part} is a {type(source).__name__} without state_dict(): it cannot be saved")
    return source.state_dict()


def _load(part: Part, target: Any, saved: Any, path: Path) -> None:
    if target is None and saved is None:
        return
    if target is None or saved is None:
        has, lacks = ("the checkpoint", "the run") if target is None else ("the run", "the checkpoint")
        raise CheckpointError(f"{path} does not fit this run: {has} has a {part}, {lacks} has none")
    if not callable(getattr(target, "load_state_dict", None)):
        raise CheckpointError(f"state.{part} is a {type(target).__name__} without load_state_dict(): it cannot resume")
    try:
        target.load_state_dict(saved)
    except Exception as error:
        raise CheckpointError(
            f"{path} does not fit this run's {part}: {error}; "
            "resume with the configuration it was saved with, or begin anew in another folder"
        ) from error
