"""Checkpoints as artifacts of a wandb run, offline: what a later `wandb sync` would send."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline.hooks.trainer_hooks import AddedHooks
from hookline.plugin_manager import PluginManager
from hookline.testing import EventRecorder
from hookline_checkpoint import Checkpoint, CheckpointHook, CheckpointManager
from hookline_hookspecs import TrainerState

wandb = pytest.importorskip("wandb")

Register = Callable[..., Checkpoint]
Run = Callable[..., TrainerState]
Save = Callable[[TrainerState], None]


@pytest.fixture
def wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A real wandb run that sends nothing."""
    for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "wandb-files"))
    run = wandb.init(
        mode="offline",
        project="tries",
        id="r1",
        dir=tmp_path,
        settings=wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True
        ),
    )
    yield run
    run.finish()


def with_wandb(state: TrainerState, wandb_run: Any) -> TrainerState:
    state.shared["metrics"]["wandb_run"] = wandb_run
    return state


def wait_for_upload(plugin: Any, state: TrainerState, manager: PluginManager) -> None:
    while not plugin.checkpoint_manager.is_idle:
        manager.emit.on_epoch_start(state=state)


def test_checkpoints_become_artifacts_at_an_interval_of_their_own(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save, wandb_run: Any, tmp_path: Path
) -> None:
    plugin = checkpoint(wandb_every=20, keep_last=1)
    uris = []
    for epoch in (10, 20, 30, 40):
        state = with_wandb(run(epoch=epoch, step=epoch * 8), wandb_run)
        save(state)
        wait_for_upload(plugin, state, hookline_manager)
        uris.append(state.latest_checkpoint_uri)
    state.epoch = 41
    hookline_manager.emit.on_training_complete(state=state)
    uris.append(state.latest_checkpoint_uri)
    prefix = "wandb://tries/r1-checkpoint:"
    assert uris == [None, f"{prefix}epoch-000020", None, f"{prefix}epoch-000040", f"{prefix}epoch-000041"]
    wandb_run.finish()
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    while b"epoch-000041" not in (told := log.read_bytes()):  # what `wandb sync` sends, with its texts as they are
        time.sleep(0.01)
    assert [f"epoch-0000{epoch}".encode() in told for epoch in (10, 20, 30, 40, 41)] == [False, True, False, True, True]
    for name in (b"manifest.json", b"state.json", b"policy.safetensors", b"optimizer.safetensors"):
        assert name in told


def test_a_wandb_run_that_appears_late_gets_the_next_checkpoint(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save, wandb_run: Any
) -> None:
    plugin = checkpoint(wandb_every=20)
    save(run(epoch=20))
    state = with_wandb(run(epoch=30), wandb_run)
    save(state)
    wait_for_upload(plugin, state, hookline_manager)
    assert state.latest_checkpoint_uri == "wandb://tries/r1-checkpoint:epoch-000030"


def test_a_hook_knows_the_address_of_its_latest_artifact(
    hookline_manager: PluginManager, run: Run, wandb_run: Any, tmp_path: Path
) -> None:
    hook = CheckpointHook(CheckpointManager(tmp_path), checkpoint_interval=5, wandb_checkpoint_interval=5)
    AddedHooks(hookline_manager, run()).add(hook)
    assert hook.latest_wandb_uri is None
    state = with_wandb(run(epoch=5), wandb_run)
    hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert hook.latest_wandb_uri == state.latest_checkpoint_uri == "wandb://tries/r1-checkpoint:epoch-000005"


def test_the_last_checkpoint_of_a_short_run_becomes_an_artifact_too(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, wandb_run: Any
) -> None:
    checkpoint()
    state = with_wandb(run(epoch=0), wandb_run)
    hookline_manager.emit.on_training_complete(state=state)
    assert state.latest_checkpoint_uri == "wandb://tries/r1-checkpoint:epoch-000000"


class Wandb:
    """A wandb run of which each artifact waits, or fails."""

    id, entity, project = "r2", "us", "tries"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.may_go_on = threading.Event()
        self.thread: threading.Thread | None = None

    def log_artifact(self, artifact: Any, aliases: list[str]) -> None:
        self.thread = threading.current_thread()
        assert self.may_go_on.wait(500)
        if self.error is not None:
            raise self.error


def test_training_does_not_wait_for_wandb_and_the_checkpoint_stays_until_it_is_read(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save, tmp_path: Path
) -> None:
    slow = Wandb()
    plugin = checkpoint(wandb_every=1, keep_last=1)
    for epoch in (10, 20, 30):
        state = with_wandb(run(epoch=epoch), slow)
        save(state)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"epoch-000010", "epoch-000030"}
    assert slow.thread is not threading.current_thread()
    slow.may_go_on.set()
    wait_for_upload(plugin, state, hookline_manager)
    assert state.latest_checkpoint_uri == "wandb://us/tries/r2-checkpoint:epoch-000010"
    save(with_wandb(run(epoch=40), None))
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"epoch-000040"}


def test_wandb_that_fails_is_a_warning_and_the_run_goes_on(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Wandb(ConnectionError("no such host"))
    broken.may_go_on.set()
    plugin = checkpoint(wandb_every=10)
    state = with_wandb(run(epoch=10), broken)
    save(state)
    wait_for_upload(plugin, state, hookline_manager)
    assert "epoch-000010 could not be uploaded to wandb: ConnectionError: no such host" in caplog.text
    assert state.latest_checkpoint_path is not None
    assert state.latest_checkpoint_uri is None


def test_artifacts_can_be_turned_off(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save
) -> None:
    untouched = Wandb()
    plugin = checkpoint(wandb_every=0)
    state = with_wandb(run(epoch=10), untouched)
    save(state)
    hookline_manager.emit.on_training_complete(state=state)
    assert plugin.checkpoint_manager.is_idle
    assert untouched.thread is None


def announced(events: EventRecorder) -> list[tuple[int, str | None]]:
    told = [event.arguments["checkpoint"] for event in events.of("on_checkpoint_saved")]
    return [(checkpoint.epoch, checkpoint.uri) for checkpoint in told]


def test_a_checkpoint_that_is_uploaded_is_announced_with_its_address_and_others_at_once(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run, save: Save
) -> None:
    wandb_run = Wandb()
    plugin = checkpoint(wandb_every=20)
    save(with_wandb(run(epoch=10), wandb_run))
    assert announced(hookline_events) == [(10, None)]
    state = with_wandb(run(epoch=20), wandb_run)
    save(state)
    assert state.latest_checkpoint_path is not None
    assert announced(hookline_events) == [(10, None)], "it is durable, and not yet where others can fetch it"
    wandb_run.may_go_on.set()
    wait_for_upload(plugin, state, hookline_manager)
    assert announced(hookline_events) == [(10, None), (20, "wandb://us/tries/r2-checkpoint:epoch-000020")]


def test_a_checkpoint_whose_upload_takes_longer_than_the_next_save_is_announced_before_that(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run, save: Save
) -> None:
    slow = Wandb()
    plugin = checkpoint(wandb_every=10)
    for epoch in (10, 20):
        state = with_wandb(run(epoch=epoch), slow)
        save(state)
    assert announced(hookline_events) == [(10, None), (20, None)]
    slow.may_go_on.set()
    wait_for_upload(plugin, state, hookline_manager)
    assert len(announced(hookline_events)) == 2
    assert state.latest_checkpoint_uri == "wandb://us/tries/r2-checkpoint:epoch-000010"


def test_a_checkpoint_whose_upload_fails_is_announced_without_an_address(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run, save: Save
) -> None:
    broken = Wandb(ConnectionError("no such host"))
    broken.may_go_on.set()
    plugin = checkpoint(wandb_every=10)
    state = with_wandb(run(epoch=10), broken)
    save(state)
    wait_for_upload(plugin, state, hookline_manager)
    assert announced(hookline_events) == [(10, None)]
