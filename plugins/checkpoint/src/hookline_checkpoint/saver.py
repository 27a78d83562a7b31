"""`Saver`: copies a run's state on the training thread, and writes it to disk on another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline_checkpoint.contents import Contents
from hookline_checkpoint.retention import Keep, Retention
from hookline_checkpoint.snapshot import Snapshot, SnapshotBuffers
from hookline_checkpoint.store import Saved, write_checkpoint
from hookline_hookspecs import CheckpointRecord

__all__ = ["Saver"]


class Saver:
    """Saves to one folder, one checkpoint at a time, since all snapshots share the same memory."""

    def __init__(self, folder: Path, keep: Keep, damaged: Iterable[Path] = ()) -> None:
        self.folder = folder
        self.retention = Retention(keep, damaged)
        self._buffers = SnapshotBuffers()
        self._writing: _Writing | None = None
        self._preparing: threading.Thread | None = None

    def prepare(self, policy: Any, optimizer: Any) -> None:
        """Allocate the memory of snapshots on another thread, since it can take longer than the snapshot itself."""
        if self._preparing is None:
            reserve = self._buffers.reserve(policy, optimizer)
            self._preparing = threading.Thread(target=reserve, name="hookline-checkpoint-memory")
            self._preparing.start()

    @property
    def is_busy(self) -> bool:
        """Whether there is a checkpoint that `finish` has not returned yet."""
        return self._writing is not None

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and self._writing.thread.is_alive()

    def start(self, contents: Contents, before_it_counts: Callable[[], object] = lambda: None) -> None:
        """Copy the contents, and start to write them. No other save may be running.

        :param before_it_counts: called on the writing thread before the checkpoint becomes valid.
        """
        assert self._writing is None, "one save at a time"
        if self._preparing is not None:
            self._preparing.join()
        writing = _Writing(self.folder, self.retention, self._buffers.take(contents), before_it_counts)
        writing.thread.start()
        self._writing = writing

    def finish(self, *, wait: bool = False) -> CheckpointRecord | None:
        """The checkpoint that became durable since the last call, if any. Raises the error of a failed save.

        :param wait: wait for a checkpoint that is being written.
        """
        writing = self._writing
        if writing is None or (writing.thread.is_alive() and not wait):
            return None
        writing.thread.join()
        self._writing = None
        if writing.error is not None:
            raise writing.error
        assert writing.saved is not None
        return CheckpointRecord(
            path=writing.saved.path,
            epoch=writing.snapshot.epoch,
            step=writing.snapshot.step,
            size_bytes=writing.saved.size_bytes,
            metrics=dict(writing.snapshot.metrics),
            fingerprint=writing.saved.fingerprint,
        )


@dataclass
class _Writing:
    """One checkpoint that is being written."""

    folder: Path
    retention: Retention
    snapshot: Snapshot
    before_it_counts: Callable[[], object]
    saved: Saved | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        # Not a daemon thread, so that the process finishes its checkpoint however the training thread ended.
        self.thread = threading.Thread(target=self._write, name="hookline-checkpoint-writer")

    def _write(self) -> None:
        try:
            saved = write_checkpoint(self.folder, self.snapshot, self.before_it_counts)
            self.retention.prune(saved.path, self.snapshot.metrics)
            self.saved = saved
        except BaseException as error:
            self.error = error
