"""Checkpoints as artifacts of the wandb run, when there is one."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from hookline_checkpoint.layout import FILES
from hookline_checkpoint.retention import Retention
from hookline_hookspecs import CheckpointRecord
from hookline_hookspecs.errors import describe_error

__all__ = ["Uploads"]

logger = logging.getLogger("hookline.checkpoint")

LAST_WAIT: Final = 30.0
"""How many seconds the end of a run waits for an artifact to be handed to wandb."""


class Uploads:
    """Hands durable checkpoints to wandb, one at a time and off the training thread. Its failures are told, not raised:
    the checkpoint itself is safe.

    :param resumed: the epoch that the run goes on from, None for a new run; the next artifact is counted from there.
    """

    def __init__(self, resumed: int | None = None) -> None:
        self._last = resumed
        self._thread: threading.Thread | None = None
        self._uri: str | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is an artifact whose end `finish` has not told yet."""
        return self._thread is not None

    def offer(
        self, record: CheckpointRecord, wandb_run: Any, retention: Retention, *, every: int, is_final: bool
    ) -> bool:
        """Make an artifact of a checkpoint, if it is time for one, and say whether; for the run's final one it is.

        :param every: epochs between two artifacts; 0 for none.
        """
        if wandb_run is None or not every or record.path is None or self._thread is not None:
            return False
        is_due = record.epoch // every > (self._last or 0) // every
        if record.epoch == self._last or not (is_due or is_final):
            return False
        self._last = record.epoch
        retention.hold(record.path)
        # A daemon: the end of the process waits for a checkpoint to be on disk, not for a server.
        self._thread = threading.Thread(
            target=self._upload, args=(record, wandb_run, retention), name="hookline-checkpoint-upload", daemon=True
        )
        self._thread.start()
        return True

    def finish(self, *, wait: bool = False) -> str | None:
        """The address of the artifact that was made since the last call, if one was."""
        if self._thread is None:
            return None
        if wait:
            self._thread.join(LAST_WAIT)
            if self._thread.is_alive():
                logger.warning("wandb has not taken the last checkpoint within %g s", LAST_WAIT)
        if self._thread.is_alive():
            return None
        self._thread = None
        uri, self._uri = self._uri, None
        return uri

    def _upload(self, record: CheckpointRecord, wandb_run: Any, retention: Retention) -> None:
        assert record.path is not None
        try:
            self._uri = _log_artifact(record, wandb_run)
        except Exception as error:
            logger.warning("checkpoint %s could not be handed to wandb: %s", record.path, describe_error(error))
        finally:
            retention.release(record.path)


def _log_artifact(record: CheckpointRecord, wandb_run: Any) -> str:
    import wandb

    assert record.path is not None
    artifact = wandb.Artifact(
        f"{wandb_run.id}-checkpoint",
        type="checkpoint",
        metadata={"epoch": record.epoch, "step": record.step, "metrics": record.metrics},
    )
    for file in (record.path / name for name in FILES):
        if file.exists():  # arrays of plugins may be none
            artifact.add_file(str(file))
    # The alias names this one for good; the version is wandb's to give, and offline it is not known yet.
    alias = record.path.name
    wandb_run.log_artifact(artifact, aliases=["latest", alias])
    place = "/".join(part for part in (wandb_run.entity, wandb_run.project, artifact.name.partition(":")[0]) if part)
    return f"wandb://{place}:{alias}"
