"""`check_plugin`: the checks that every plugin should pass."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hookline.plugin_manager.construction import make_plugin
from hookline.plugin_manager.events import Event
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline_hookspecs import (
    CheckpointRecord,
    Episode,
    EpisodeBatch,
    EvaluationRequest,
    HookContext,
    ReplayRecord,
    Rollout,
    TrainerState,
    Turn,
)
from hookline_hookspecs.sinks import Run

__all__ = ["REPORTS", "check_plugin", "sample_arguments"]

FRAMEWORKS: Final = ("torch", "jax", "mlx", "wandb", "tensorflow", "tensorboard", "trackio", "mlflow", "ray")

REPORTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pre_training": {"total_epochs": 2, "total_steps": 8, "start_epoch": 0, "start_step": 0},
    "pre_training_step": {"current_epoch": 0, "current_step": 3, "total_steps": 8},
    "post_training_step": {"current_epoch": 0, "current_step": 4, "total_steps": 8, "train/loss": 0.5},
    "post_training": {"final_epoch": 1, "final_step": 8, "total_steps": 8, "final_val_loss": 0.25},
    "pre_validation": {"current_epoch": 0, "is_last_step": False},
    "pre_validation_step": {"current_epoch": 0, "batch_index": 0},
    "post_validation_step": {"current_epoch": 0, "batch_index": 0, "val_score": 0.5},
    "post_validation": {"current_epoch": 0, "val_avg_loss": 0.5},
    "log_metrics": {"train/loss": 0.5},
}
"""Samples of `report_data`: exactly the keys that each event promises, and metrics, whose names have a slash."""


def sample_arguments(event: Event, run_dir: Path | None = None) -> dict[str, Any]:
    """Sample arguments for one emission of `event`. Arguments that Hookline does not know are None."""
    episodes = [Episode(prompt="2 + 3 =", response="5", reference="5", reward=1.0), Episode("4 + 4 =", "9", "8", 0.0)]
    makers: dict[str, Callable[[], Any]] = {
        "accepted": lambda: episodes[:1],
        "batch": lambda: EpisodeBatch(episodes=episodes, lesson_id="addition"),
        "changes": lambda: {"addition": "unlocked"},
        "checkpoint": lambda: CheckpointRecord(path=run_dir and run_dir / "checkpoints" / "epoch-000000", step=4),
        "context": lambda: HookContext(step=4, lesson_id="addition"),
        "episode": lambda: Episode(turns=[Turn("user", "2 + 3 ="), Turn("assistant", "5")], group=0),
        "error": lambda: RuntimeError("a sample of an error"),
        "rejected": lambda: episodes[1:],
        "replay": lambda: ReplayRecord(path=run_dir and run_dir / "replays" / "sample.jsonl", episodes=2),
        "reason": lambda: "killed by SIGKILL",
        "report_data": lambda: dict(REPORTS.get(event.name, {})),
        "request": EvaluationRequest,
        "rewards": lambda: [1.0, 0.0],
        "run": lambda: Run(run_dir or Path(), run_id="sample", config={"learning_rate": 0.1}),
        "rollout": lambda: Rollout(lesson_id="addition", episodes=episodes, stats={"mean_reward": 0.5}),
        "saved": dict,
        "scores": lambda: {"eval/addition/success_rate": 0.5},
        "state": lambda: TrainerState(
            run_id="sample", run_dir=run_dir, step=4, total_epochs=2, total_steps=8, loss_stats={"train/loss": 0.5}
        ),
        "step": lambda: 4,
        "turn": lambda: Turn("assistant", "5"),
        "version": lambda: 1,
        "worker_index": lambda: 1,
    }
    return {name: makers[name]() if name in makers else None for name in event.arguments}


def check_plugin(target: Any, **options: Any) -> None:
    """Construct a plugin, emit all its events with sample arguments, and check its imports. Raises on a fault.

    :param target: the object of the plugin's entry point: its class, a factory function, or a module.
    :param options: the plugin's options, as in the user's config.
    """
    plugin_name = "checked-plugin"
    with tempfile.TemporaryDirectory() as folder, PluginManager() as manager:
        plugin = make_plugin(plugin_name, target, options, manager)
        _check_marks(plugin, manager)
        manager.register(plugin, plugin_name, overrides=Overrides(on_error="raise"))
        implemented = [caller.name for caller in manager.get_hookcallers(plugin) or ()]
        for name in implemented:
            event = manager.events.get(name)
            if event is not None:
                getattr(manager.hook, name)(**sample_arguments(event, Path(folder)))
        unfinished = manager.drain()
        assert not unfinished, "the plugin's background work did not finish in time"
        manager.unregister(name=plugin_name)
        manager.register(plugin, plugin_name)
    _check_imports(target)


def _check_marks(plugin: Any, manager: PluginManager) -> None:
    marked = [name for name in dir(plugin) if manager.parse_hookimpl_opts(plugin, name) is not None]
    forgotten = [
        name
        for name in dir(plugin)
        if name in manager.events and name not in marked and callable(getattr(plugin, name))
    ]
    assert not forgotten, f"named after an event, but not marked with @hookimpl: {', '.join(forgotten)}"
    assert marked, "the plugin implements no event: mark its methods with @hookimpl"


def _check_imports(target: Any) -> None:
    """Importing a plugin must not import a framework: the command line imports plugins at every start."""
    module = target if isinstance(target, ModuleType) else inspect.getmodule(target)
    if module is None or module.__name__ == "__main__" or module.__spec__ is None:
        return
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import {module.__name__}; "
        f"print(*(name for name in {FRAMEWORKS!r} if name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"importing {module.__name__} in a process of its own fails:\n{result.stderr}"
    loaded = result.stdout.split()
    assert not loaded, (
        f"importing {module.__name__} imports {', '.join(loaded)}: import it in the function that uses it"
    )
