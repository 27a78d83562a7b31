"""A run that goes on from its newest valid checkpoint, and what it says when it cannot."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import EventRecorder
from hookline_checkpoint import Checkpoint, CheckpointError, Options
from hookline_hookspecs import TrainerState, hookimpl

Register = Callable[..., Checkpoint]
Run = Callable[..., TrainerState]
Save = Callable[[TrainerState], None]


class Counter:
    """A plugin with something to remember."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    @hookimpl
    def save_plugin_state(self) -> dict[str, Any]:
        return {"count": self.count}

    @hookimpl
    def load_plugin_state(self, saved: dict[str, Any]) -> None:
        self.count = saved["counter"]["count"]


@pytest.fixture
def resumed(checkpoint: Register, hookline_manager: PluginManager, run: Run) -> Callable[..., Any]:
    """Resumes a run by a plugin that is as new as its process: `record = resumed(state)`."""

    def resume(state: TrainerState | None = None, **options: Any) -> Any:
        checkpoint(**options)
        state = state or run(resume=True)
        hookline_manager.emit.on_new_training_run(state=state)
        return hookline_manager.emit.restore_training_run(state=state)

    return resume


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_resumed_run_has_its_counters_weights_optimizer_and_scores_back(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    old = run(epoch=10, step=80, agent_step=640, eval_scores={"success": 0.5})
    save(old)
    new = run(resume=True)
    scores = new.eval_scores
    record = resumed(new)
    assert (new.epoch, new.step, new.agent_step) == (10, 80, 640)
    assert new.policy.weight.tolist() == old.policy.weight.tolist()
    assert str(new.optimizer.state) == str(old.optimizer.state)
    assert new.eval_scores == {"success": 0.5}
    assert new.eval_scores is scores
    assert record.path == new.latest_checkpoint_path == old.latest_checkpoint_path


def test_a_run_that_is_not_to_be_resumed_is_left_as_it_is(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save
) -> None:
    checkpoint()
    save(run(epoch=10))
    state = run()
    assert hookline_manager.emit.restore_training_run(state=state) is None
    assert state.epoch == 0


def test_every_rank_restores(checkpoint: Register, run: Run, save: Save) -> None:
    checkpoint()
    save(run(epoch=10))
    with PluginManager(rank=1) as manager:
        manager.register(Checkpoint(Options(), manager.emit))
        assert manager.emit.restore_training_run(state=run(rank=1, resume=True)).epoch == 10


def test_what_is_resumed_is_not_saved_again(
    checkpoint: Register,
    hookline_manager: PluginManager,
    run: Run,
    save: Save,
    resumed: Callable[..., Any],
    hookline_events: EventRecorder,
) -> None:
    checkpoint()
    save(run(epoch=10))
    hookline_events.clear()
    state = run(resume=True)
    resumed(state)
    hookline_manager.emit.on_training_complete(state=state)
    assert "on_checkpoint_saved" not in hookline_events.names()


def test_plugins_get_back_what_they_handed_over(
    checkpoint: Register,
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    run: Run,
    save: Save,
    resumed: Callable[..., Any],
) -> None:
    checkpoint()
    hookline_manager.register(Counter(7), "counter")
    save(run(epoch=10))
    fresh = Counter()
    hookline_manager.replace("counter", fresh)
    hookline_events.clear()
    resumed()
    assert fresh.count == 7
    assert hookline_events.names()[1:] == ["restore_training_run", "load_plugin_state", "on_checkpoint_restored"]
    assert hookline_events.of("load_plugin_state")[0].arguments["state"].epoch == 10


def test_damaged_checkpoints_are_skipped_and_the_log_says_why(
    checkpoint: Register,
    run: Run,
    save: Save,
    tmp_path: Path,
    resumed: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint()
    for epoch in (10, 20, 30):
        save(run(epoch=epoch))
    (tmp_path / "checkpoints/epoch-000030/manifest.json").unlink()
    (tmp_path / "checkpoints/epoch-000020/state.json").write_text("{}")
    assert resumed().epoch == 10
    skipped = warnings(caplog)
    assert len(skipped) == 2
    assert "epoch-000030: manifest.json is missing" in skipped[0]
    assert "epoch-000020: state.json has 2 bytes" in skipped[1]


def test_damaged_checkpoints_do_not_count_among_those_that_are_kept(
    checkpoint: Register,
    hookline_manager: PluginManager,
    run: Run,
    save: Save,
    tmp_path: Path,
    resumed: Callable[..., Any],
) -> None:
    checkpoint(keep_last=2)
    for epoch in (10, 20):
        save(run(epoch=epoch))
    (tmp_path / "checkpoints/epoch-000020/manifest.json").unlink()
    resumed(keep_last=2)
    save(run(epoch=30, resume=True))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["epoch-000010", "epoch-000030"]


def test_a_run_with_nothing_but_damaged_checkpoints_does_not_begin_anew_in_silence(
    checkpoint: Register, run: Run, save: Save, tmp_path: Path, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    save(run(epoch=10))
    (tmp_path / "checkpoints/epoch-000010/manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .* is valid.*manifest.json is missing"):
        resumed()


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew_and_says_so(
    resumed: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "checkpoints" / ".staging-epoch-000010").mkdir(parents=True)
    assert resumed() is None
    assert f"there is no checkpoint in {tmp_path / 'checkpoints'} yet: the run starts from the beginning" in caplog.text


def test_a_new_run_refuses_a_folder_with_checkpoints_of_another(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, save: Save
) -> None:
    checkpoint()
    save(run(epoch=10))
    with pytest.raises(CheckpointError, match=r"newest epoch-000010: resume that run with --resume .*, or give"):
        hookline_manager.emit.on_new_training_run(state=run())


def test_weights_of_another_shape_are_an_error_that_names_them_and_both_shapes(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    save(run(epoch=10))
    state = run(resume=True)
    state.policy = type(state.policy)(width=8)
    with pytest.raises(
        CheckpointError,
        match=r"epoch-000010 does not fit this run's policy: layer\.weight has the shape \(4, 2\) in the checkpoint and "
        r"\(8, 2\) in this run; resume with the config it was saved with",
    ):
        resumed(state)


def test_what_a_policy_says_of_a_state_that_it_cannot_load_is_passed_on(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint()
    save(run(epoch=10))
    state = run(resume=True)

    def refuse(saved: Any) -> None:
        raise KeyError("head.bias")

    monkeypatch.setattr(state.policy, "load_state_dict", refuse)
    with pytest.raises(CheckpointError, match=r"epoch-000010 does not fit this run's policy: 'head.bias'"):
        resumed(state)


@pytest.mark.parametrize("part", ["policy", "optimizer"])
def test_a_part_that_one_side_lacks_is_an_error(
    checkpoint: Register, run: Run, save: Save, part: str, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    save(run(epoch=10))
    with pytest.raises(CheckpointError, match=f"the checkpoint has a {part}, the run has none"):
        resumed(run(resume=True, **{part: None}))


def test_several_optimizers_are_restored_by_their_names(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    saved = {"actor": run(epoch=1).optimizer, "critic": run(epoch=2).optimizer}
    save(run(epoch=10, optimizer=saved))
    new = run(resume=True, optimizer={"critic": run().optimizer, "actor": run().optimizer})
    resumed(new)
    assert str(new.optimizer["actor"].state) == str(saved["actor"].state)
    assert str(new.optimizer["critic"].state) == str(saved["critic"].state)


def test_optimizers_of_other_names_are_an_error(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    save(run(epoch=10, optimizer={"actor": run().optimizer, "critic": run().optimizer}))
    message = "the run has the optimizers actor, value, and the checkpoint has actor, critic"
    with pytest.raises(CheckpointError, match=message):
        resumed(run(resume=True, optimizer={"actor": run().optimizer, "value": run().optimizer}))


SAVED_WITH = {
    "hookline": "0.1.0",
    "task": "cartpole",
    "trainer": {"epochs": 10, "run_dir": "runs/a", "optimizer": {"betas": (0.9, 0.99), "clip": float("inf")}},
    "plugins": {"checkpoint": {"options": {}}},
}


def config_with(**trainer: Any) -> dict[str, Any]:
    return {**SAVED_WITH, "trainer": {**SAVED_WITH["trainer"], **trainer}}  # type: ignore[dict-item]


def test_another_configuration_is_told_key_by_key(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint()
    save(run(epoch=10, config=config_with()))
    now = config_with(epochs=20, optimizer={"betas": (0.9, 0.95), "clip": float("inf")}, seed=3, run_dir="runs/moved")
    assert resumed(run(resume=True, config=now)).epoch == 10
    (told,) = warnings(caplog)
    assert told.endswith(
        "with a different config: trainer.epochs was 10, is 20; "
        "trainer.optimizer.betas was [0.9, 0.99], is [0.9, 0.95]; trainer.seed was absent, is 3"
    )


def test_the_same_configuration_is_not_worth_a_word(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint()
    save(run(epoch=10, config=config_with()))
    resumed(run(resume=True, config=config_with(run_dir="runs/elsewhere", resume=True)))
    assert not warnings(caplog)


def test_another_task_is_an_error(checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any]) -> None:
    checkpoint()
    save(run(epoch=10, config=config_with()))
    with pytest.raises(CheckpointError, match='by a run of the task "cartpole", but this run\'s task is "arithmetic"'):
        resumed(run(resume=True, config={**SAVED_WITH, "task": "arithmetic"}))


def test_a_task_in_a_file_that_was_moved_is_the_same_task(
    checkpoint: Register, run: Run, save: Save, resumed: Callable[..., Any]
) -> None:
    checkpoint()
    save(run(epoch=10, config={"task": "/old/place/mine.py:maze"}))
    assert resumed(run(resume=True, config={"task": "/new/place/mine.py:maze"})).epoch == 10
