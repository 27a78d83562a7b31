"""With the real tensorboard: what was written is read back by its `EventAccumulator`."""

import errno
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from hookline.plugin_manager import PluginManager
from hookline.testing import check_plugin, check_sink
from hookline_hookspecs import Episode, HookContext, ReplayRecord, Rollout, TrainerState
from hookline_hookspecs.sinks import STARTED, Report, Run
from hookline_metrics import Metrics
from hookline_metrics import Options as MetricsOptions
from hookline_tensorboard import Options, TensorBoard

State = Callable[..., TrainerState]


def accumulated(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
    events.Reload()
    return events


def text(events: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(tag)]


def scalars(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.fixture
def manager(hookline_manager: PluginManager) -> PluginManager:
    options = MetricsOptions(progress="off", report=False, system_every=0.0)
    hookline_manager.register(Metrics(options, hookline_manager.emit), "metrics")
    hookline_manager.register(TensorBoard(Options()), "tensorboard")
    return hookline_manager


def test_it_is_a_good_plugin_with_a_good_sink(tmp_path: Path) -> None:
    check_plugin(TensorBoard)
    check_sink(TensorBoard)
    check_sink(TensorBoard, logdir=str(tmp_path))
    assert (tmp_path / "checked run").is_dir()


def test_a_run_is_in_tensorboard(manager: PluginManager, hookline_state: State, tmp_path: Path) -> None:
    config = {"optimizer": {"lr": 0.5, "api_key": "planted"}, "layers": [2, 3], "fast": True}
    state = hookline_state(config=config, step=3)
    manager.emit.on_new_training_run(state=state)
    manager.emit.log_metrics(report_data={"train/loss": 0.5, "train/broken": math.nan}, step=3)
    rollout = Rollout(episodes=[Episode("2 + 3 =", "five", reward=0.0), Episode("1 + 1 =", "2", reward=1.0)])
    manager.emit.on_rollout_end(context=HookContext(lesson_id="sums"), rollout=rollout)
    manager.emit.on_epoch_end(state=state)
    replay = tmp_path / "epoch-000001.jsonl"
    replay.write_text(
        '{"lesson": "sums", "reward": 1.0, "prompt": "3 + 3 =", "response": "6", "verdict": {"result": "pass"}}\n'
        '{"lesson": "balance", "reward": 9.0, "length": 9}\n'
    )
    manager.emit.on_replay_saved(state=state, replay=ReplayRecord(replay, episodes=2, step=3))
    manager.emit.on_training_complete(state=state)
    assert manager.drain() == []
    assert not manager.faults

    events = accumulated(tmp_path / "tensorboard")
    assert scalars(events, "train/loss") == [(3, 0.5)]
    assert math.isnan(scalars(events, "train/broken")[0][1])
    assert scalars(events, "run/completed") == [(3, 1.0)]
    ((step, samples),) = text(events, "samples/sums")
    assert step == 3
    assert samples.split("\n\n---\n\n") == [
        "**user**\n\n```\n2 + 3 =\n```\n\n**assistant**\n\n```\nfive\n```\n\nreward 0",
        "**user**\n\n```\n1 + 1 =\n```\n\n**assistant**\n\n```\n2\n```\n\nreward 1",
    ]
    ((_, replayed),) = text(events, "replays/all")
    assert replayed == "**user**\n\n```\n3 + 3 =\n```\n\n**assistant**\n\n```\n6\n```\n\nreward 1, pass"
    ((_, shown),) = text(events, "config")
    assert '"lr": 0.5' in shown
    assert '"api_key": "********"' in shown
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    started = HParamsPluginData.FromString(content).session_start_info
    assert started.hparams["optimizer.lr"].number_value == 0.5
    assert started.hparams["optimizer.api_key"].string_value == "********"
    assert started.hparams["layers"].string_value == "[2, 3]"
    assert started.hparams["fast"].bool_value is True


def resumed(tmp_path: Path, *, at: int, count: int = 8, pace: float = 1.0) -> EventAccumulator:
    """A run of six steps, and its continuation from a checkpoint, whose losses are negative."""
    from hookline_tensorboard.sink import TensorBoardSink

    for resume, steps in ((False, range(7)), (True, range(at, count + 1))):
        sink = TensorBoardSink(Run(tmp_path, "r", resume=resume), Options())
        losses = [Report(step, 0, {"loss": -step if resume else step}, step * pace) for step in steps[1:]]
        sink.write([Report(steps[0], None, {STARTED: 1.0}, 0.0), *losses])
        sink.close()
    return accumulated(tmp_path / "tensorboard")


def test_a_resumed_run_continues_the_curve_from_its_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    assert scalars(resumed(tmp_path, at=4), "loss") == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, -5),
        (6, -6),
        (7, -7),
        (8, -8),
    ]


def test_a_resumed_run_whose_reports_are_joined_drops_the_same_steps(tmp_path: Path) -> None:
    losses = scalars(resumed(tmp_path, at=4, count=104, pace=0.004), "loss")
    assert losses == [(4, 4), *((step, -step) for step in range(9, 105, 5))]


def test_a_run_that_is_resumed_without_a_checkpoint_starts_the_curve_anew(tmp_path: Path) -> None:
    assert scalars(resumed(tmp_path, at=0), "loss") == [(step, -step) for step in range(1, 9)]


def test_above_fifty_reports_a_second_neighbours_are_joined_and_no_name_is_left_out(tmp_path: Path) -> None:
    from hookline_tensorboard.sink import TensorBoardSink

    sink = TensorBoardSink(Run(tmp_path), Options())
    reports = [Report(step, 0, {"loss": float(step)}, step / 200) for step in range(101)]
    reports[14] = Report(14, 0, {"score": 0.5}, 14 / 200)
    sink.write(reports)
    sink.close()
    events = accumulated(tmp_path / "tensorboard")
    assert scalars(events, "loss") == [(step, step) for step in (*range(3, 101, 4), 100)]
    assert scalars(events, "score") == [(15, 0.5)]


def test_a_full_disk_leaves_whole_records_and_the_reports_come_again(tmp_path: Path) -> None:
    from hookline_tensorboard.sink import TensorBoardSink

    class Full:
        """A file on a disk that has room for ten more bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, data: Any) -> int:
            self.file.write(bytes(data)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    sink = TensorBoardSink(Run(tmp_path), Options())
    sink.write([Report(1, 0, {"loss": 1.0}, 1.0)])
    file = sink._file
    sink._file = Full(file)
    with pytest.raises(OSError, match="No space left"):
        sink.write([Report(2, 0, {"loss": 2.0}, 1.0)])
    sink._file = file
    sink.write([Report(2, 0, {"loss": 2.0}, 1.0)])
    sink.close()
    assert scalars(accumulated(tmp_path / "tensorboard"), "loss") == [(1, 1.0), (2, 2.0)]
