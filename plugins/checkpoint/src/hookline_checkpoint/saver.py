"""`Saver`: copies a run's state on the training thread, and writes it to disk on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
        # The process waits for this thread, so it finishes its checkpoint however the training thread ended. One thread
        # for all checkpoints, since `Thread.start` waits until the new thread runs.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hookline-checkpoint-writer")
        self._preparing: Future[None] | None = None
        self._writing: tuple[Snapshot, Future[Saved]] | None = None

    def prepare(self, policy: Any, optimizer: Any) -> None:
        """Allocate the memory of snapshots on another thread, since it can take longer than the snapshot itself."""
        if self._preparing is None:
            self._preparing = self._thread.submit(self._buffers.reserve(policy, optimizer))

    @property
    def is_busy(self) -> bool:
        """Whether there is a checkpoint that `finish` has not returned yet."""
        return self._writing is not None

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and not self._writing[1].done()

    def start(self, contents: Contents, before_it_counts: Callable[[], object] = lambda: None) -> None:
        """Copy the contents, and start to write them. No other save may be running.

        :param before_it_counts: called on the writing thread before the checkpoint becomes valid.
        """
        assert self._writing is None, "one save at a time"
        if self._preparing is not None:
            wait([self._preparing])
        snapshot = self._buffers.take(contents)
        self._writing = snapshot, self._thread.submit(self._write, snapshot, before_it_counts)

    def _write(self, snapshot: Snapshot, before_it_counts: Callable[[], object]) -> Saved:
        saved = write_checkpoint(self.folder, snapshot, before_it_counts)
        self.retention.prune(saved.path, snapshot.metrics)
        return saved

    def finish(self, *, wait: bool = False) -> CheckpointRecord | None:
        """The checkpoint that became durable since the last call, if any. Raises the error of a failed save.

        :param wait: wait for a checkpoint that is being written.
        """
        if self._writing is None or (self.is_writing and not wait):
            return None
        snapshot, written = self._writing
        try:
            saved = written.result()
        finally:
            self._writing = None
        return CheckpointRecord(
            path=saved.path,
            epoch=snapshot.epoch,
            step=snapshot.step,
            size_bytes=saved.size_bytes,
            metrics=dict(snapshot.metrics),
            fingerprint=saved.fingerprint,
        )
