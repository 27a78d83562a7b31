"""`check_sink`: the checks that every sink should pass."""

from __future__ import annotations

import copy
import math
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hookline.plugin_manager.construction import make_plugin
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline_hookspecs import CheckpointRecord, ReplayRecord
from hookline_hookspecs.sinks import STARTED, Report, Run, Sample, Samples, Sink

__all__ = ["check_sink"]

NAME: Final = "checked-plugin"

SECONDS: Final = 120.0
"""How long a sink may take for all that it is given here."""

CONFIG: Final = {"task": "sums", "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "_note": None, "api_key": "********"}

REPORTS: Final = [
    Report(0, None, {STARTED: 1.0}, 1000.0),
    Report(1, 0, {"train/loss": 0.5, "train/not a number": math.nan, "train/infinite": -math.inf}, 1000.5),
    Report(1, 0, {"train/loss": 0.25}, 1000.6),
    Report(2, 0, {}, 1001.0),
    Report(2, 0, {"n" * 250: 1.0, "größe: 5 % (a|b)": 1.0, "../up": 1.0, "//": 1.0, "_own": 1e308}, 1001.5),
    *(Report(step, 1, {"train/loss": 1 / step}, 1002.0 + step / 1000) for step in range(3, 1500)),
    Report(2**53, 1, {"run/saved": 1.0}, 1005.0),
    Report(5, 1, {"run/completed": 1.0}, 1006.0),
]

SAMPLES: Final = [
    Samples(1, "addition", (Sample((("user", "2 + 3 ="), ("assistant", "5")), 1.0, "pass"),)),
    Samples(2, None, (Sample((("system", ""), ("user", "```\n| # <b>"), ("tool", "ü"), ("assistant", "9"))),)),
]


def check_sink(target: Any, **options: Any) -> None:
    """Open the sinks of a plugin, pass them all that a run may record, and do so again as a resumed run.

    The options must have the sink write to this machine only. What it writes is for tests of its own to read back.

    :param target: the object of the plugin's entry point: its class, a factory function, or a module.
    :param options: the plugin's options, as in the user's config.
    """
    with tempfile.TemporaryDirectory() as folder, PluginManager() as manager:
        plugin = make_plugin(NAME, target, options, manager)
        manager.register(plugin, NAME, overrides=Overrides(on_error="raise"))
        run = Run(Path(folder) / "run", "checked run", CONFIG)
        for own in (run, replace(run, resume=True)):
            before = set(Path(folder).rglob("*"))
            registered = _checked(dict(manager.emit.register_sinks(run=own).items()).get(NAME))
            assert set(Path(folder).rglob("*")) == before, "register_sinks writes files: open them with the sink"
            for name, open_sink in registered.items():
                _check_open_sink(name, open_sink, Path(folder))


def _checked(registered: Any) -> Mapping[str, Callable[[], Sink]]:
    assert isinstance(registered, Mapping), f"register_sinks must return a dictionary, not {registered!r}"
    assert registered, "register_sinks returns no sink"
    for name, open_sink in registered.items():
        assert isinstance(name, str), f"the name of a sink must be a string, not {name!r}"
        assert callable(open_sink), f"sink {name!r} must be a function that opens it, not {open_sink!r}"
    return registered


def _check_open_sink(name: str, open_sink: Callable[[], Sink], folder: Path) -> None:
    reports = copy.deepcopy(REPORTS)
    errors: list[BaseException] = []

    def use() -> None:
        try:
            sink = open_sink()
            for part in (reports[:1], reports[1:5], reports[5:], reports[5:]):  # the last again, as after an error
                sink.write(part)
            for samples in SAMPLES:
                sink.write_samples(samples)
            sink.write_replay(_replay(folder))
            sink.write_replay(ReplayRecord())
            sink.write_checkpoint(_checkpoint(folder))
            sink.write_checkpoint(CheckpointRecord())
            sink.close()
        except BaseException as error:
            errors.append(error)

    others = set(threading.enumerate())
    thread = threading.Thread(target=use, name=f"check-sink-{name}", daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"sink {name!r} has not come to an end within {SECONDS:g} s"
    if errors:
        raise errors[0]
    # As text, since NaN differs from itself; one at a time, since pytest would diff the whole list for minutes.
    changed = [report for report, given in zip(reports, REPORTS, strict=True) if str(report) != str(given)]
    assert not changed, f"sink {name!r} changes the reports, which other sinks are given too: {changed[0]}"
    left = [own.name for own in set(threading.enumerate()) - others if own.is_alive() and not own.daemon]
    assert not left, f"sink {name!r} leaves threads that keep the process from ending: {', '.join(left)}"


def _replay(folder: Path) -> ReplayRecord:
    path = folder / "replays" / "epoch-000001.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        '{"epoch": 1, "step": 8, "lesson": "addition", "reward": 1.0, "prompt": "2 + 3 =", "response": "5"}\n'
        '{"epoch": 1, "step": 8, "lesson": "balance", "reward": 2.0, "actions": [0, 1], "length": 2}\n',
        encoding="utf-8",
    )
    path.with_suffix(".html").write_text("<p>2 + 3 = 5</p>", encoding="utf-8")
    return ReplayRecord(path, episodes=2, step=8)


def _checkpoint(folder: Path) -> CheckpointRecord:
    path = folder / "checkpoints" / "epoch-000001"
    path.mkdir(parents=True, exist_ok=True)
    for name in ("policy.safetensors", "state.json", "manifest.json"):
        (path / name).write_text("{}", encoding="utf-8")
    return CheckpointRecord(path, epoch=1, step=8, metrics={"eval/addition/success_rate": 0.5})
