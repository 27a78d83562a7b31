"""`CheckpointManager`: saves and restores the checkpoints of one run. The caller decides when."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from hookline_checkpoint.contents import Contents
from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.layout import find_checkpoints
from hookline_checkpoint.options import Options
from hookline_checkpoint.reading import Loaded, newest_valid, refuse_newer_formats
from hookline_checkpoint.restoring import as_plain_data, restore, state_dict_of
from hookline_checkpoint.saver import Saver
from hookline_checkpoint.uploads import Uploads
from hookline_hookspecs import CheckpointRecord, TrainerState
from hookline_hookspecs.redaction import redact

__all__ = ["CheckpointManager", "record_of"]

logger = logging.getLogger("hookline.checkpoint")


class CheckpointManager:
    """Saves a run to its folder in the background, and restores it: `CheckpointManager("runs/mine", keep_last=2)`.

    :param run_dir: the run's folder; None for `state.run_dir`.
    :param options: the fields of `Options`.
    """

    def __init__(self, run_dir: str | Path | None = None, **options: Any) -> None:
        self.options = Options(**options)
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._saver: Saver | None = None
        self._uploads = Uploads()
        self._latest: CheckpointRecord | None = None
        self._damaged: list[Path] = []
        self._has_missed_metric = False
        self._config: tuple[str, dict[str, Any]] = "", {}

    def folder(self, state: TrainerState) -> Path | None:
        """The folder of the run's checkpoints; None for a run without a folder."""
        run_dir = self._run_dir or state.run_dir
        return None if run_dir is None else Path(run_dir) / "checkpoints"

    @property
    def is_idle(self) -> bool:
        """Whether neither `finish` nor `finish_upload` has anything to return."""
        return (self._saver is None or not self._saver.is_busy) and not self._uploads.is_busy

    # -- saving ---------------------------------------------------------------------------------------------------

    def begin(self, state: TrainerState) -> None:
        """Start a run. A new run is refused if the folder has checkpoints of another run."""
        folder = self.folder(state)
        self._saver, self._latest, self._damaged = None, None, []
        self._uploads = Uploads()
        if folder is None:
            logger.warning("the run has no folder, so no checkpoints are saved")
            return
        refuse_newer_formats(folder)
        existing = find_checkpoints(folder)
        if existing and not state.resume:
            raise CheckpointError(
                f"{folder} has checkpoints of an earlier run, the newest {existing[0].name}: "
                "resume that run with --resume (resume=True), or give the new run another folder"
            )

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is still being written, so that the next save would have to wait."""
        return self._saver is not None and self._saver.is_writing

    def is_saved(self, state: TrainerState) -> bool:
        """Whether the newest checkpoint is of this epoch and step."""
        return self._latest is not None and (self._latest.epoch, self._latest.step) == (state.epoch, state.step)

    def prepare(self, state: TrainerState) -> None:
        """Allocate memory for the first save. Call it once policy and optimizer have their final size."""
        saver = self._saver_of(state)
        if saver is not None:
            saver.prepare(state_dict_of("policy", state.policy), state_dict_of("optimizer", state.optimizer))

    def _saver_of(self, state: TrainerState) -> Saver | None:
        folder = self.folder(state)
        if folder is not None and (self._saver is None or self._saver.folder != folder):
            self._saver = Saver(folder, self.options.keep(), self._damaged)
        return None if folder is None else self._saver

    def start(self, state: TrainerState, plugins: Mapping[str, dict[str, Any]]) -> None:
        """Copy the run's state, and start to write it in the background. An earlier save must be finished."""
        saver = self._saver_of(state)
        assert saver is not None
        metrics = _finite(state.eval_scores)
        self._look_for_metric(metrics)
        saver.start(
            Contents(
                run_id=state.run_id,
                epoch=state.epoch,
                step=state.step,
                agent_step=state.agent_step,
                metrics=metrics,
                config=self._config_of(state),
                policy=state_dict_of("policy", state.policy),
                optimizer=state_dict_of("optimizer", state.optimizer),
                plugins=dict(plugins),
            ),
            _wait_for_plugins(state),
        )

    def _config_of(self, state: TrainerState) -> dict[str, Any]:
        """The config as JSON data without secrets. Made anew only when it changes, since it hardly ever does."""
        text = json.dumps(state.config, default=repr)
        if text != self._config[0]:
            self._config = text, redact(as_plain_data(state.config))
        return self._config[1]

    def finish(self, *, wait: bool = False) -> CheckpointRecord | None:
        """The checkpoint that became durable since the last call, if any. Raises the error of a failed save."""
        record = None if self._saver is None else self._saver.finish(wait=wait)
        self._latest = record or self._latest
        return record

    def _look_for_metric(self, metrics: Mapping[str, float]) -> None:
        name = self.options.best_metric
        if self.options.keep_best and name not in metrics and metrics and not self._has_missed_metric:
            self._has_missed_metric = True
            logger.warning(
                "a checkpoint without the score %r (best_metric) cannot be kept as one of the best. Its scores are %s",
                name,
                ", ".join(metrics),
            )

    # -- wandb ----------------------------------------------------------------------------------------------------

    @property
    def is_uploading(self) -> bool:
        """Whether there is an upload that `finish_upload` has not returned yet."""
        return self._uploads.is_busy

    def offer_upload(self, wandb_run: Any, *, is_final: bool) -> bool:
        """Upload the newest checkpoint to the wandb run, if there is one and an upload is due. Returns whether."""
        if self._saver is None or self._latest is None:
            return False
        every = self.options.wandb_every
        return self._uploads.start_if_due(
            self._latest, wandb_run, self._saver.retention, every=every, is_final=is_final
        )

    def finish_upload(self, *, wait: bool = False) -> str | None:
        """The URI of the artifact that was uploaded since the last call, if any."""
        return self._uploads.finish(wait=wait)

    # -- resuming -------------------------------------------------------------------------------------------------

    def restore(self, state: TrainerState) -> Loaded | None:
        """Restore the state from the newest valid checkpoint, and return that checkpoint; None if there is none."""
        folder = self.folder(state)
        if folder is None:
            return None
        loaded, skipped = newest_valid(folder)
        for error in skipped:
            logger.warning("skipped an invalid checkpoint: %s", error)
        if loaded is None:
            if skipped:
                raise CheckpointError(
                    f"none of the {len(skipped)} checkpoints in {folder} is valid. The newest: {skipped[0]}. "
                    "Restore them from a backup, or start a new run in another folder"
                )
            logger.info("there is no checkpoint in %s yet: the run starts from the beginning", folder)
            return None
        restore(state, loaded)
        self._damaged = [error.path for error in skipped if error.path is not None]
        contents = loaded.contents
        self._latest = record_of(loaded)
        self._uploads = Uploads(contents.epoch)
        logger.info("resumed from %s: epoch %d is complete, step %d", loaded.path, contents.epoch, contents.step)
        return loaded


def _wait_for_plugins(state: TrainerState) -> Callable[[], None]:
    """A function that calls the plugins' `before_checkpoint` callbacks. They return once their own data is on disk."""
    waits = {
        plugin: namespace.pop("before_checkpoint")
        for plugin, namespace in list(state.shared.items())
        if "before_checkpoint" in namespace
    }

    def wait() -> None:
        for plugin, wait_for_it in waits.items():
            try:
                wait_for_it()
            except Exception as error:
                logger.warning(
                    "before_checkpoint of plugin %r failed; the checkpoint is still saved: %r", plugin, error
                )

    return wait


def record_of(loaded: Loaded) -> CheckpointRecord:
    """The `CheckpointRecord` of a checkpoint that was read."""
    contents = loaded.contents
    return CheckpointRecord(
        path=loaded.path,
        epoch=contents.epoch,
        step=contents.step,
        size_bytes=loaded.size_bytes,
        metrics=dict(contents.metrics),
        fingerprint=loaded.fingerprint,
    )


def _finite(scores: Mapping[str, Any]) -> dict[str, float]:
    """The finite scores as floats. Others are left out."""
    found = {}
    for name, score in scores.items():
        with contextlib.suppress(OverflowError):
            if isinstance(score, Real) and math.isfinite(score):
                found[name] = float(score)
    return found
