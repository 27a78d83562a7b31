"""Which checkpoints are kept, whatever is saved, damaged, replaced or resumed in whatever order."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hookline_checkpoint import Options
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.reading import newest_valid
from hookline_checkpoint.retention import Keep, Retention
from hookline_checkpoint.saver import Saver

SCORE = "eval/score"


class Saves(RuleBasedStateMachine):
    """A run that saves, is killed and resumed, and finds checkpoints damaged; and beside it what should be on disk."""

    @initialize(last=st.integers(1, 3), best=st.integers(0, 3), mode=st.sampled_from(["max", "min"]))
    def begin(self, last: int, best: int, mode: Any) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.keep = Keep(last, best, SCORE if best else None, mode)
        self.epoch = 0
        self.scores: dict[int, float | None] = {}
        """Of the checkpoints that should be there and valid."""
        self.damaged: set[int] = set()
        self.resume()

    @rule()
    def resume(self) -> None:
        """A new process knows nothing but what is on disk."""
        valid, skipped = newest_valid(self.folder)
        self.saver = Saver(self.folder, self.keep, [error.path for error in skipped if error.path is not None])
        self.epoch = valid.contents.epoch if valid else 0

    @rule(score=st.none() | st.integers(-2, 2), step=st.integers(1, 12))
    def save(self, score: int | None, step: int) -> None:
        self.epoch += step
        metrics = {} if score is None else {SCORE: float(score)}
        self.saver.start(Contents(epoch=self.epoch, metrics=metrics, policy={"w": numpy.full(3, self.epoch)}))
        record = self.saver.finish(wait=True)
        assert record is not None
        self.scores[self.epoch] = metrics.get(SCORE)
        self.damaged = {epoch for epoch in self.damaged if epoch > self.epoch}
        kept = set(sorted(self.scores)[-self.keep.last :])
        sign = -1 if self.keep.mode == "max" else 1
        scored = sorted((sign * score, epoch) for epoch, score in self.scores.items() if score is not None)
        kept |= {epoch for _, epoch in scored[: self.keep.best]}
        self.scores = {epoch: score for epoch, score in self.scores.items() if epoch in kept}

    @precondition(lambda self: len(self.scores) > 1)
    @rule(file=st.sampled_from(["state.json", "manifest.json", "policy.safetensors"]))
    def damage_the_newest_and_resume(self, file: str) -> None:
        newest = max(self.scores)
        (self.folder / f"epoch-{newest:06d}" / file).write_bytes(b"{}")
        del self.scores[newest]
        self.damaged.add(newest)
        self.resume()

    @invariant()
    def what_is_there_is_what_should_be(self) -> None:
        there = {path.name for path in self.folder.iterdir()} if hasattr(self, "folder") else set()
        assert there == {
            f"epoch-{epoch:06d}" for epoch in {*getattr(self, "scores", ()), *getattr(self, "damaged", ())}
        }

    @invariant()
    def the_newest_can_be_read(self) -> None:
        if getattr(self, "scores", None):
            valid, skipped = newest_valid(self.folder)
            assert valid is not None
            assert valid.contents.epoch == max(self.scores) == self.epoch
            assert (valid.contents.policy["w"] == self.epoch).all()
            assert len(skipped) == len([epoch for epoch in self.damaged if epoch > self.epoch])

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestSaves = Saves.TestCase
TestSaves.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., list[str]]:
    """Saves scores one after the other, at the epochs 1, 2, ...; returns what is left."""

    def save(scores: list[float], keep: Keep) -> list[str]:
        saver = Saver(tmp_path, keep)
        for epoch, score in enumerate(scores, start=1):
            saver.start(Contents(epoch=epoch, metrics={SCORE: score}))
            saver.finish(wait=True)
        return sorted(path.name[-1] for path in tmp_path.iterdir())

    return save


def test_the_best_are_kept_beyond_the_last(saved: Callable[..., list[str]]) -> None:
    assert saved([1, 9, 2, 8, 3, 4], Keep(last=1, best=2, metric=SCORE)) == ["2", "4", "6"]


def test_the_least_can_be_the_best(saved: Callable[..., list[str]]) -> None:
    assert saved([5, 1, 4, 3], Keep(last=1, best=1, metric=SCORE, mode="min")) == ["2", "4"]


def test_of_equally_good_ones_the_oldest_is_kept(saved: Callable[..., list[str]]) -> None:
    assert saved([7, 7, 7, 1], Keep(last=1, best=1, metric=SCORE)) == ["1", "4"]


def test_the_best_of_an_earlier_process_are_known_from_disk(tmp_path: Path, saved: Callable[..., list[str]]) -> None:
    saved([9, 2, 3], Keep(last=1, best=1, metric=SCORE))
    saver = Saver(tmp_path, Keep(last=1, best=1, metric=SCORE))
    for epoch in (4, 5):
        saver.start(Contents(epoch=epoch, metrics={SCORE: 5.0}))
        saver.finish(wait=True)
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["1", "5"]


def test_one_that_is_being_read_is_removed_later(tmp_path: Path) -> None:
    saver = Saver(tmp_path, Keep(last=1))
    for epoch in (1, 2, 3, 4):
        saver.start(Contents(epoch=epoch))
        record = saver.finish(wait=True)
        assert record is not None
        assert record.path is not None
        if epoch == 1:
            saver.retention.hold(record.path)
        if epoch == 3:
            saver.retention.release(tmp_path / "epoch-000001")
            assert (tmp_path / "epoch-000001").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000004"]


def test_a_checkpoint_just_saved_is_kept_though_damaged_ones_are_newer(tmp_path: Path) -> None:
    for epoch in (20, 15):
        saver = Saver(tmp_path, Keep(last=1))
        saver.start(Contents(epoch=epoch))
        saver.finish(wait=True)
        (tmp_path / "epoch-000020" / "manifest.json").unlink(missing_ok=True)
    found, _ = newest_valid(tmp_path)
    assert found is not None
    assert found.contents.epoch == 15


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keep_last": 0}, "keep_last must be at least 1, got 0"),
        ({"keep_best": -1}, "keep_best must be at least 0, got -1"),
        ({"keep_best": 2}, r"keep_best needs best_metric, the name of a score in state\.eval_scores"),
        ({"wandb_every": -5}, "wandb_every must be at least 0, got -5"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Options(**options)


def test_retention_without_a_metric_reads_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retention = Retention(Keep(last=2))
    (tmp_path / "epoch-000001").mkdir()
    (tmp_path / "epoch-000002").mkdir()
    monkeypatch.setattr("hookline_checkpoint.retention.read_metrics", lambda path: pytest.fail("it was read"))
    retention.prune(tmp_path / "epoch-000002", {})
