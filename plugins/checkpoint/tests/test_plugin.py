import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.plugins import PluginManager
from hookline.testing import EventRecorder, check_plugin
from hookline_checkpoint import Checkpoint, CheckpointError, Options
from hookline_hookspecs import TrainerState, hookimpl

Register = Callable[..., Checkpoint]
Run = Callable[..., TrainerState]


class Counter:
    """A plugin with something to remember."""

    def __init__(self, count: Any = 0) -> None:
        self.count = count

    @hookimpl
    def save_plugin_state(self) -> dict[str, Any]:
        return {"count": self.count}

    @hookimpl
    def load_plugin_state(self, saved: dict[str, Any]) -> None:
        self.count = saved["counter"]["count"]


def saved_epochs(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_it_is_a_good_plugin() -> None:
    check_plugin(Checkpoint, keep_last=2)


def test_it_saves_every_ten_epochs(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    checkpoint(keep_last=2)
    for epoch in range(35):
        hookline_manager.emit.on_epoch_end(state=run(epoch=epoch))
    assert saved_epochs(tmp_path) == ["epoch-000020", "epoch-000030"]


def test_it_tells_others_where_the_checkpoint_is(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run, tmp_path: Path
) -> None:
    checkpoint()
    state = run(epoch=10, step=80, eval_scores={"success": 0.5, "broken": float("nan")})
    hookline_manager.emit.on_epoch_end(state=state)
    assert hookline_events.names() == ["on_epoch_end", "save_plugin_state", "on_checkpoint_saved"]
    told = hookline_events.of("on_checkpoint_saved")[0].arguments
    path = tmp_path / "checkpoints" / "epoch-000010"
    assert told["state"].latest_checkpoint_path == told["checkpoint"].path == path
    assert told["checkpoint"].size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert (told["checkpoint"].epoch, told["checkpoint"].step) == (10, 80)
    assert told["checkpoint"].metrics == {"success": 0.5}


def test_the_end_of_a_run_is_saved_once(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run, tmp_path: Path
) -> None:
    checkpoint()
    for epoch in (10, 13):
        state = run(epoch=epoch)
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert saved_epochs(tmp_path) == ["epoch-000010", "epoch-000013"]
    assert len(hookline_events.of("on_checkpoint_saved")) == 2


def test_only_rank_0_saves(run: Run, tmp_path: Path) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Checkpoint(Options(), manager.emit))
        manager.emit.on_training_complete(state=run(rank=1, world_size=2))
    assert not (tmp_path / "checkpoints").exists()


def test_a_resumed_run_has_its_counters_weights_and_optimizer_back(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint(resume=True)
    old = run(epoch=10, step=80, agent_step=640)
    hookline_manager.emit.on_epoch_end(state=old)
    new = run()
    hookline_manager.emit.on_new_training_run(state=new)
    record = hookline_manager.emit.restore_training_run(state=new)
    assert (new.epoch, new.step, new.agent_step) == (10, 80, 640)
    assert new.policy.weight.tolist() == old.policy.weight.tolist()
    assert str(new.optimizer.state) == str(old.optimizer.state)
    assert record.path == new.latest_checkpoint_path == old.latest_checkpoint_path


def test_every_rank_restores(checkpoint: Register, hookline_manager: PluginManager, run: Run) -> None:
    checkpoint()
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    with PluginManager(rank=1) as manager:
        manager.register(Checkpoint(Options(resume=True), manager.emit))
        assert manager.emit.restore_training_run(state=run(rank=1)).epoch == 10


def test_plugins_get_back_what_they_handed_over(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run
) -> None:
    checkpoint(resume=True)
    hookline_manager.register(Counter(7), "counter")
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    fresh = Counter()
    hookline_manager.replace("counter", fresh)
    hookline_events.clear()
    hookline_manager.emit.restore_training_run(state=run())
    assert fresh.count == 7
    assert hookline_events.names() == ["restore_training_run", "load_plugin_state", "on_checkpoint_restored"]
    assert hookline_events.of("load_plugin_state")[0].arguments["state"].epoch == 10


def test_a_plugin_whose_state_json_cannot_hold_is_named(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    checkpoint()
    hookline_manager.register(Counter(count=object()), "counter")
    with pytest.raises(CheckpointError, match="plugin 'counter' returned from save_plugin_state what JSON cannot hold"):
        hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    assert not (tmp_path / "checkpoints").exists()


def test_damaged_checkpoints_are_skipped_and_the_log_says_why(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint(resume=True)
    for epoch in (10, 20, 30):
        hookline_manager.emit.on_epoch_end(state=run(epoch=epoch))
    (tmp_path / "checkpoints/epoch-000030/manifest.json").unlink()
    (tmp_path / "checkpoints/epoch-000020/state.json").write_text("{}")
    assert hookline_manager.emit.restore_training_run(state=run()).epoch == 10
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "epoch-000030: manifest.json is missing" in warnings[0]
    assert "epoch-000020: state.json has 2 bytes" in warnings[1]


def test_a_run_with_nothing_but_damaged_checkpoints_does_not_begin_anew_in_silence(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    checkpoint(resume=True)
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    (tmp_path / "checkpoints/epoch-000010/manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .* is valid.*manifest.json is missing"):
        hookline_manager.emit.restore_training_run(state=run())


def test_a_run_without_checkpoints_begins_anew_though_told_to_resume(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint(resume=True)
    hookline_manager.emit.on_new_training_run(state=run())
    assert hookline_manager.emit.restore_training_run(state=run()) is None


def test_a_new_run_refuses_a_folder_with_checkpoints_of_another(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint()
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    with pytest.raises(
        CheckpointError, match=r"newest epoch-000010: resume that run .*checkpoint\.resume=true, or give"
    ):
        hookline_manager.emit.on_new_training_run(state=run())


def test_weights_of_another_shape_are_an_error_that_names_the_checkpoint(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint(resume=True)
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    state = run()
    state.policy = type(state.policy)(width=8)
    with pytest.raises(CheckpointError, match=r"epoch-000010 does not fit this run's policy: layer.weight is \(4, 2\)"):
        hookline_manager.emit.restore_training_run(state=state)


@pytest.mark.parametrize("part", ["policy", "optimizer"])
def test_a_part_that_one_side_lacks_is_an_error(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, part: str
) -> None:
    checkpoint(resume=True)
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    with pytest.raises(CheckpointError, match=f"the checkpoint has a {part}, the run has none"):
        hookline_manager.emit.restore_training_run(state=run(**{part: None}))


def test_a_policy_that_cannot_be_saved_is_an_error(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint()
    with pytest.raises(CheckpointError, match=r"state.policy is a list without state_dict\(\)"):
        hookline_manager.emit.on_training_complete(state=run(policy=[1, 2]))


def test_a_run_without_a_folder_is_left_alone(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint(resume=True)
    state = run(run_dir=None)
    hookline_manager.emit.on_new_training_run(state=state)
    assert hookline_manager.emit.restore_training_run(state=state) is None
    hookline_manager.emit.on_training_complete(state=state)
    assert state.latest_checkpoint_path is None
    assert "no checkpoints are saved" in caplog.text


def test_the_weights_can_be_opened_without_hookline(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    checkpoint()
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    path = tmp_path / "checkpoints/epoch-000010"
    assert load_file(path / "policy.safetensors")["layer.weight"].shape == (4, 2)
    assert json.loads((path / "state.json").read_text())["counters"] == {"epoch": 10, "step": 0, "agent_step": 0}


def test_keeping_no_checkpoint_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_last must be at least 1, got 0"):
        Options(keep_last=0)
