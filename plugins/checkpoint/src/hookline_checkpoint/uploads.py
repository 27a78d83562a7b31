"""Uploads checkpoints as artifacts of the wandb run, if there is one."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from hookline_checkpoint.layout import OTHER_FILES, policy_files
from hookline_checkpoint.retention import Retention
from hookline_hookspecs import CheckpointRecord, Every
from hookline_hookspecs.errors import describe_error

__all__ = ["Uploads"]

logger = logging.getLogger("hookline.checkpoint")

LAST_WAIT: Final = 30.0
"""How many seconds the end of a run waits for the last upload."""


class Uploads:
    """Uploads durable checkpoints to wandb, one at a time and off the training thread.

    A failed upload is logged and not raised, since the checkpoint itself is safe on disk.

    :param resumed: the epoch that the run resumes from, None for a new run. Intervals count from there.
    """

    def __init__(self, resumed: int | None = None) -> None:
        self._last = resumed
        self._thread: threading.Thread | None = None
        self._uri: str | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is an upload that `finish` has not returned yet."""
        return self._thread is not None

    def start_if_due(
        self, record: CheckpointRecord, wandb_run: Any, retention: Retention, *, every: int, is_final: bool
    ) -> bool:
        """Start to upload a checkpoint if that is due, or if it is the run's final checkpoint. Returns whether it did.

        :param every: epochs between two uploads; 0 for none.
        """
        if wandb_run is None or not every or record.path is None or self._thread is not None:
            return False
        is_due = Every(every).is_due(0 if self._last is None else self._last + 1, record.epoch + 1)
        if record.epoch == self._last or not (is_due or is_final):
            return False
        self._last = record.epoch
        retention.hold(record.path)
        # A daemon thread, so that the process does not wait for a server at its end.
        self._thread = threading.Thread(
            target=self._upload, args=(record, wandb_run, retention), name="hookline-checkpoint-upload", daemon=True
        )
        self._thread.start()
        return True

    def finish(self, *, wait: bool = False) -> str | None:
        """The URI of the artifact that was uploaded since the last call, if any."""
        if self._thread is None:
            return None
        if wait:
            self._thread.join(LAST_WAIT)
            if self._thread.is_alive():
                logger.warning("the last checkpoint was not uploaded to wandb within %g s", LAST_WAIT)
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
            logger.warning("checkpoint %s could not be uploaded to wandb: %s", record.path, describe_error(error))
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
    names = [path.name for path in record.path.iterdir()]
    for file in (record.path / name for name in (*policy_files(names), *OTHER_FILES)):
        if file.exists():
            artifact.add_file(str(file))
    # The alias identifies this artifact. wandb assigns the version, which is not known yet when offline.
    alias = record.path.name
    wandb_run.log_artifact(artifact, aliases=["latest", alias])
    place = "/".join(part for part in (wandb_run.entity, wandb_run.project, artifact.name.partition(":")[0]) if part)
    return f"wandb://{place}:{alias}"
