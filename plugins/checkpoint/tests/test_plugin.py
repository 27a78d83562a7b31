import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline.hooks.trainer_hooks import AddedHooks
from hookline.plugin_manager import PluginManager
from hookline.testing import EventRecorder, check_plugin
from hookline_checkpoint import Checkpoint, CheckpointError, CheckpointHook, CheckpointManager, Options
from hookline_checkpoint import plugin as plugin_module
from hookline_hookspecs import TrainerState, hookimpl

Register = Callable[..., Checkpoint]
Run = Callable[..., TrainerState]
Save = Callable[[TrainerState], None]


class Counter:
    """A plugin with something to remember."""

    def __init__(self, count: Any = 0) -> None:
        self.count = count

    @hookimpl
    def save_plugin_state(self) -> dict[str, Any]:
        return {"count": self.count}


def saved_epochs(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_it_is_a_good_plugin() -> None:
    check_plugin(Checkpoint, keep_last=2)


@pytest.mark.parametrize(
    ("options", "start_epoch", "saved"),
    [
        ({"every": None}, 0, [9, 19, 29]),
        ({"every": 1}, 30, [30, 31, 32, 33, 34]),
        ({"every": 12}, 0, [11, 23]),
        ({"every": 12}, 13, [23]),
        # Four steps an epoch: 50 are complete in the thirteenth, 100 at the end of the twenty-fifth.
        ({"every": None, "every_steps": 50}, 0, [12, 24]),
        ({"every": None, "every_steps": 50}, 13, [24]),
        ({"every": None, "every_steps": 1}, 32, [32, 33, 34]),
        ({"every": 20, "every_steps": 50}, 0, [12, 19, 24]),
    ],
)
def test_it_saves_every_so_many_epochs_or_steps_when_an_epoch_ends(
    checkpoint: Register,
    hookline_manager: PluginManager,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    start_epoch: int,
    saved: list[int],
) -> None:
    monkeypatch.setattr(plugin_module, "DEFAULT_SECONDS", 0.0)
    checkpoint(keep_last=10, **options)
    state = run(step=4 * start_epoch, total_epochs=35)
    hookline_manager.emit.on_new_training_run(state=state)
    hookline_manager.emit.pre_training(state=state, report_data={"start_epoch": start_epoch})
    for state.epoch in range(start_epoch, 35):
        for _ in range(4):
            state.step += 1
            hookline_manager.emit.post_training_step(state=state, report_data={})
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_failed(state=state, error=RuntimeError())
    assert saved_epochs(tmp_path) == [f"epoch-{epoch:06d}" for epoch in saved]


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({"every": None}, [9, 39, 69]),
        ({"every": None, "keep_best": 1, "best_metric": "eval/success_rate"}, [9, 39, 49, 79]),
        ({"every": 10}, [*range(9, 90, 10)]),
    ],
    ids=["by default", "with the best kept", "with an interval"],
)
def test_a_fast_run_is_saved_every_five_seconds_and_when_it_is_evaluated_if_the_best_are_kept(
    checkpoint: Register,
    hookline_manager: PluginManager,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    saved: list[int],
) -> None:
    now = 100.0
    monkeypatch.setattr("hookline_checkpoint.plugin.time.monotonic", lambda: now)
    checkpoint(keep_last=10, **options)
    state = run()
    hookline_manager.emit.on_new_training_run(state=state)
    hookline_manager.emit.pre_training(state=state, report_data={"start_epoch": 0})
    for state.epoch in range(90):
        now += 0.175
        state.step += 1
        if state.epoch == 49:
            state.shared["evaluation"]["step"] = state.step
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_failed(state=state, error=RuntimeError())
    assert saved_epochs(tmp_path) == [f"epoch-{epoch:06d}" for epoch in saved]


def test_a_plugin_that_joins_a_run_saves_at_the_next_multiple(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    checkpoint(every=10)
    state = run()
    for state.epoch in range(13, 25):
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_failed(state=state, error=RuntimeError())
    assert saved_epochs(tmp_path) == ["epoch-000019"]


@pytest.mark.parametrize(("total", "every"), [(None, 10), (80, 10), (500, 10), (700, 14), (1000, 20), (100_000, 2000)])
def test_a_long_run_is_saved_about_fifty_times(total: int | None, every: int) -> None:
    assert Options().interval(total) == every
    assert Options(every=3).interval(total) == 3


def test_it_tells_others_where_the_checkpoint_is_once_it_is_durable(
    checkpoint: Register,
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    run: Run,
    tmp_path: Path,
    slow_disk: threading.Event,
) -> None:
    plugin = checkpoint()
    state = run(epoch=10, step=80, eval_scores={"success": 0.5, "broken": float("nan")})
    hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.post_training_step(state=state, report_data={})
    assert hookline_events.names() == ["on_epoch_end", "save_plugin_state", "post_training_step"]
    assert state.latest_checkpoint_path is None
    slow_disk.set()
    while plugin.checkpoint_manager.is_writing:
        time.sleep(0.001)
    state.epoch, state.step = 11, 85
    hookline_manager.emit.on_epoch_start(state=state)
    assert hookline_events.names()[-2:] == ["on_epoch_start", "on_checkpoint_saved"]
    told = hookline_events.of("on_checkpoint_saved")[0].arguments
    path = tmp_path / "checkpoints" / "epoch-000010"
    assert told["state"].latest_checkpoint_path == told["checkpoint"].path == path
    assert told["checkpoint"].size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert (told["checkpoint"].epoch, told["checkpoint"].step) == (10, 80)
    assert told["checkpoint"].metrics == {"success": 0.5}


def test_others_are_told_on_the_training_thread(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save
) -> None:
    class Listener:
        thread: threading.Thread | None = None

        @hookimpl
        def on_checkpoint_saved(self) -> None:
            self.thread = threading.current_thread()

    listener = Listener()
    hookline_manager.register(listener)
    checkpoint()
    save(run(epoch=10))
    assert listener.thread is threading.current_thread()


def test_a_checkpoint_of_the_next_epoch_waits_for_the_one_before(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path, slow_disk: threading.Event
) -> None:
    checkpoint()
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    threading.Timer(0.05, slow_disk.set).start()
    state = run(epoch=20)
    hookline_manager.emit.on_epoch_end(state=state)
    assert state.latest_checkpoint_path == tmp_path / "checkpoints" / "epoch-000010"
    hookline_manager.emit.on_training_complete(state=state)
    assert saved_epochs(tmp_path) == ["epoch-000010", "epoch-000020"]


def test_or_leaves_itself_out_and_the_end_of_the_run_is_saved_all_the_same(
    checkpoint: Register,
    hookline_manager: PluginManager,
    run: Run,
    tmp_path: Path,
    slow_disk: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint(when_busy="skip")
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    state = run(epoch=20)
    hookline_manager.emit.on_epoch_end(state=state)
    assert "epoch 20 is not saved, since the previous checkpoint is still being written" in caplog.text
    state.epoch = 21
    slow_disk.set()
    hookline_manager.emit.on_training_complete(state=state)
    assert saved_epochs(tmp_path) == ["epoch-000010", "epoch-000021"]


def test_the_end_of_a_run_is_saved_once_and_waited_for(
    checkpoint: Register, hookline_manager: PluginManager, hookline_events: EventRecorder, run: Run, tmp_path: Path
) -> None:
    checkpoint()
    for epoch in (10, 13):
        state = run(epoch=epoch)
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert state.latest_checkpoint_path == tmp_path / "checkpoints" / "epoch-000013"
    hookline_manager.emit.on_training_complete(state=state)
    assert saved_epochs(tmp_path) == ["epoch-000010", "epoch-000013"]
    assert len(hookline_events.of("on_checkpoint_saved")) == 2


def test_a_run_that_fails_waits_for_what_is_being_written_and_saves_nothing_more(
    checkpoint: Register,
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    run: Run,
    tmp_path: Path,
    slow_disk: threading.Event,
) -> None:
    checkpoint()
    state = run(epoch=10)
    hookline_manager.emit.on_epoch_end(state=state)
    state.epoch, state.step = 11, 99
    threading.Timer(0.05, slow_disk.set).start()
    hookline_manager.emit.on_training_failed(state=state, error=KeyboardInterrupt())
    assert saved_epochs(tmp_path) == ["epoch-000010"]
    assert [event.arguments["checkpoint"].epoch for event in hookline_events.of("on_checkpoint_saved")] == [10]


def test_the_first_save_takes_no_memory_that_a_step_could_not_take_before(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint()
    state = run(epoch=9)
    state.policy.weight = numpy.zeros(2_000_000)
    hookline_manager.emit.post_training_step(state=state, report_data={})
    while any(thread.name == "hookline-checkpoint-memory" for thread in threading.enumerate()):
        time.sleep(0.001)
    tracemalloc.start()
    try:
        state.epoch = 10
        hookline_manager.emit.on_epoch_end(state=state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    hookline_manager.emit.on_training_complete(state=state)
    assert peak < state.policy.weight.nbytes / 4


def test_a_failure_to_write_ends_the_run_at_the_next_look(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    plugin = checkpoint()
    (tmp_path / "checkpoints").write_text("a file in the way")
    state = run(epoch=10)
    hookline_manager.emit.on_epoch_end(state=state)
    while plugin.checkpoint_manager.is_writing:
        time.sleep(0.001)
    with pytest.raises(CheckpointError, match="epoch-000010 cannot be saved: .*File exists"):
        hookline_manager.emit.post_training_step(state=state, report_data={})
    assert state.latest_checkpoint_path is None


def test_the_best_are_kept_by_the_score_that_the_options_name(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path, save: Save
) -> None:
    checkpoint(keep_last=1, keep_best=1, best_metric="loss", best_mode="min")
    for epoch, loss in ((10, 0.5), (20, 0.1), (30, 0.3), (40, 0.2)):
        save(run(epoch=epoch, eval_scores={"loss": loss}))
    assert saved_epochs(tmp_path) == ["epoch-000020", "epoch-000040"]


def test_a_score_that_does_not_exist_is_told_once(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint(keep_best=1, best_metric="sucess")
    for epoch in (10, 20):
        save(run(epoch=epoch, eval_scores={"success": 0.5, "length": 3.0}))
    expected = "a checkpoint without the score 'sucess' (best_metric) cannot be kept as one of the best. Its scores are success, length"
    assert caplog.text.count(expected) == 1


def test_only_rank_0_saves(run: Run, tmp_path: Path) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Checkpoint(Options(), manager.emit))
        manager.emit.on_training_complete(state=run(rank=1, world_size=2))
    assert not (tmp_path / "checkpoints").exists()


def test_a_plugin_whose_state_json_cannot_hold_is_named(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    checkpoint()
    hookline_manager.register(Counter(count=object()), "counter")
    with pytest.raises(
        CheckpointError, match="what plugin 'counter' returned from save_plugin_state cannot be written as JSON"
    ):
        hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    assert not (tmp_path / "checkpoints").exists()


def test_a_policy_that_cannot_be_saved_is_an_error(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint()
    with pytest.raises(CheckpointError, match=r"state.policy is a list without state_dict\(\)"):
        hookline_manager.emit.on_training_complete(state=run(policy=[1, 2]))


def test_a_run_without_a_folder_is_left_alone(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint()
    state = run(run_dir=None, resume=True)
    hookline_manager.emit.on_new_training_run(state=state)
    assert hookline_manager.emit.restore_training_run(state=state) is None
    hookline_manager.emit.on_training_complete(state=state)
    assert state.latest_checkpoint_path is None
    assert "no checkpoints are saved" in caplog.text


def test_the_weights_can_be_opened_without_hookline(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path, save: Save
) -> None:
    from safetensors.numpy import load_file

    checkpoint()
    save(run(epoch=10))
    path = tmp_path / "checkpoints/epoch-000010"
    assert load_file(path / "policy.safetensors")["layer.weight"].shape == (4, 2)
    assert json.loads((path / "state.json").read_text())["counters"] == {"epoch": 10, "step": 0, "agent_step": 0}


def test_two_that_would_save_the_same_run_are_an_error(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path
) -> None:
    checkpoint()
    hook = CheckpointHook(CheckpointManager(tmp_path), 5, 0)
    AddedHooks(hookline_manager, run()).add(hook)
    with pytest.raises(CheckpointError, match=r"would both save this run's checkpoints: disable .*-p no:checkpoint"):
        hookline_manager.emit.on_new_training_run(state=run())


def test_a_hook_without_events_says_how_to_add_it(run: Run, tmp_path: Path) -> None:
    hook = CheckpointHook(CheckpointManager(tmp_path), 5, 0)
    with pytest.raises(CheckpointError, match=r"this CheckpointHook cannot emit events: add it with trainer.add_hook"):
        hook.on_training_start(run())


def test_a_hook_without_a_manager_of_checkpoints_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a CheckpointHook needs a CheckpointManager first, not 'runs/mine'"):
        CheckpointHook("runs/mine", 5, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("returned", [[("count", 1)], "text", 7, {"a"}])
def test_a_plugin_whose_state_is_no_mapping_has_failed_and_the_checkpoint_is_saved_without_it(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save, tmp_path: Path, returned: Any
) -> None:
    class Careless:
        @hookimpl
        def save_plugin_state(self) -> Any:
            return returned

    checkpoint()
    hookline_manager.register(Careless(), "careless")
    hookline_manager.register(Counter(3), "counter")
    save(run(epoch=10))
    kind = type(returned).__name__
    [fault] = hookline_manager.faults.faults.values()
    assert (fault.plugin, fault.event) == ("careless", "save_plugin_state")
    assert fault.error == f"TypeError: save_plugin_state returned a {kind}: it must return a Mapping, or None"
    state = json.loads((tmp_path / "checkpoints" / "epoch-000010" / "state.json").read_bytes())
    assert state["plugins"] == {"counter": {"count": 3}}


def test_a_critical_plugin_whose_state_is_no_mapping_ends_the_run_in_its_own_name(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    class Careless:
        critical = True

        @hookimpl
        def save_plugin_state(self) -> Any:
            return []

    checkpoint()
    hookline_manager.register(Careless(), "careless")
    with pytest.raises(TypeError, match="returned a list") as raised:
        hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    assert "raised by plugin 'careless' in save_plugin_state" in raised.value.__notes__


@pytest.mark.parametrize("score", [float("inf"), float("nan"), 10**400], ids=["inf", "nan", "huge"])
def test_a_score_that_json_cannot_hold_is_left_out_of_the_checkpoint(
    checkpoint: Register, run: Run, save: Save, tmp_path: Path, score: Any
) -> None:
    checkpoint()
    save(run(epoch=10, eval_scores={"good": 0.5, "bad": score}))
    state = json.loads((tmp_path / "checkpoints" / "epoch-000010" / "state.json").read_bytes())
    assert state["metrics"] == {"good": 0.5}
