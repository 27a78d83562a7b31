"""Runs as TOML files: `hookline train run.toml`, `--set` and `--show-config`."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import hookline
from hookline.cli import main
from hookline.errors import ConfigError, HooklineError
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import Settings, read_settings
from hookline.run_file import Layer, parse_assignment, read_run_file
from hookline.training import OptimizerConfig, Task, Trainer, TrainerConfig
from hookline.training.config import as_plain_data
from hookline.training.config_files import apply_layers, run_file_text
from hookline.training.run import rebuild_trainer, show_config
from hookline.training.tasks import find_task

ALONE = Settings(allowed={})
SMALL = ["epochs=1", "rollout.num_environments=4", "rollout.steps_per_rollout=8", "rollout.minibatches=2"]

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> str:
        (tmp_path / "run.toml").write_text(text)
        return str(tmp_path / "run.toml")

    return write_file


def faults_of(path: str, *assignments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        hookline.train(path, settings=ALONE, assignments=assignments)
    return [str(fault).removeprefix(f"{path}: ") for fault in caught.value.faults]


def test_a_run_file_changes_the_fields_that_it_names_and_no_others(write: Write) -> None:
    path = write(
        'task = "cartpole"\nepochs = 1\nthreads = "none"\n'
        "[losses.ppo_actor]\nentropy = 0.01\n"
        "[rollout]\nnum_environments = 4\nsteps_per_rollout = 8\nminibatches = 2\n"
    )
    trainer = hookline.train(path, settings=ALONE)
    default, config = find_task("cartpole", PluginManager()).config, trainer.config
    assert trainer.state.step == 2 * config.rollout.update_epochs
    assert (config.epochs, config.threads, config.rollout.num_environments) == (1, None, 4)
    assert config.losses == {**(default.losses or {}), "ppo_actor": {"entropy": 0.01, "anneal_clip": True}}
    assert (config.optimizer, config.rollout.update_epochs) == (default.optimizer, default.rollout.update_epochs)
    assert config.task == "cartpole"


def test_assignments_override_the_file_and_also_work_without_one(write: Write) -> None:
    path = write('task = "cartpole"\nepochs = 7\n[optimizer]\nlearning_rate = 0.5\n')
    assignments = [*SMALL, "optimizer.learning_rate=1e-3", "optimizer.schedule=cosine", "optimizer.options.eps=1e-7"]
    for what in (path, "cartpole"):
        config = hookline.train(what, settings=ALONE, assignments=assignments).config
        assert (config.epochs, config.optimizer.learning_rate, config.optimizer.schedule) == (1, 1e-3, "cosine")
        assert config.optimizer.options == {"eps": 1e-7}


def test_all_faults_are_reported_at_once_with_file_key_and_nearest_name(write: Write) -> None:
    path = write(
        'task = "cartpole"\nepoch = 3\nepochs = "x"\nseed = -1\nresume = true\n'
        "[optimizer]\nlearning_rat = 1\nlearning_rate = -1\n[lora]\nrank = 1\nr = 1.5\n"
    )
    found = faults_of(path, "rollout.minibatche=3", "optimizer.schedule=foo", "rollout.minibatches=0")
    assert found == [
        "resume: is for the command line: use --resume",
        "epoch: unknown key 'epoch' (did you mean 'epochs'?)",
        "epochs: input should be a valid integer, unable to parse string as an integer, got 'x'",
        "optimizer.learning_rat: unknown key 'learning_rat' (did you mean 'learning_rate'?)",
        "lora.r: input should be a valid integer, got a number with a fractional part, got 1.5",
        "lora.rank: unknown key 'rank'; known are alpha, dropout, options, r, target_modules",
        "--set rollout.minibatche: unknown key 'minibatche' (did you mean 'minibatches'?)",
        "--set optimizer.schedule: input should be 'constant', 'linear' or 'cosine', got 'foo'",
        "--set rollout.minibatches: must be at least 1, got 0",
        "seed: must be from 0 to 4294967295, got -1",
        "optimizer.learning_rate: must be greater than 0, got -1.0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = 1", 'run.toml: task: is required: task = "grpo"'),
        ("task = 5", "run.toml: task: must be a string, got 5"),
        ('task = "cartpol"', r"there is no task 'cartpol' \(did you mean 'cartpole'\?\)"),
        ("task = ", "run.toml is not valid TOML"),
        ("task = 'own.py:maze'", "there is no file '.*own.py' for the task"),
    ],
)
def test_a_file_without_a_usable_task_is_an_error(text: str, message: str, write: Write) -> None:
    with pytest.raises(HooklineError, match=message):
        hookline.train(write(text), settings=ALONE)


def test_a_missing_file_and_an_odd_assignment_are_errors(tmp_path: Path) -> None:
    with pytest.raises(HooklineError, match="there is no run file '.*none.toml'"):
        hookline.train(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="--set epochs: is not of the form KEY=VALUE"):
        hookline.train("cartpole", assignments=["epochs"], settings=ALONE)


@dataclass
class Inner:
    files: tuple[Path, ...] = ()


@dataclass
class WithPaths(TrainerConfig):
    data: Path | None = None
    inner: Inner = field(default_factory=Inner)


def test_paths_are_relative_to_the_file_and_those_of_assignments_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    table = {"data": "a.jsonl", "policy": "models/tiny", "inner": {"files": ["b", "/c"]}}
    config = apply_layers(WithPaths(), [Layer(table, "run.toml: ", tmp_path)])
    assert (config.data, config.policy) == (tmp_path / "a.jsonl", str(tmp_path / "models" / "tiny"))
    assert config.inner.files == (tmp_path / "b", Path("/c"))
    changed = apply_layers(config, [parse_assignment("data=a.jsonl"), parse_assignment("policy=Qwen/Qwen3-0.6B")])
    assert (changed.data, changed.policy) == (here / "a.jsonl", "Qwen/Qwen3-0.6B")


def test_a_task_of_a_python_file_is_found_beside_the_run_file(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(
        "from hookline.training import Trainer, task\n\n"
        "@task(epochs=9)\ndef balance(config, plugins):\n    return Trainer(config, plugins=plugins)\n"
    )
    path = write('task = "own.py:balance"')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert hookline.train(path, settings=ALONE, assignments=SMALL).config.task == str(tmp_path / "own.py:balance")


def test_a_run_file_sets_plugins_above_project_files_and_below_the_environment(tmp_path: Path, write: Write) -> None:
    (tmp_path / "hookline.toml").write_text("[plugins.checkpoint]\nevery = 2\nkeep_last = 2\nkeep_best = 2\n")
    path = write('task = "cartpole"\ndisable = ["status"]\n[plugins.checkpoint]\nkeep_last = 3\nkeep_best = 3\n')
    settings = read_settings(
        tmp_path, run_file=read_run_file(Path(path)), environ={"HOOKLINE_OPTIONS": "checkpoint.keep_best=4"}
    )
    assert settings.options["checkpoint"] == {"every": 2, "keep_last": 3, "keep_best": 4}
    assert settings.disabled == {"status": f"{path}: disable"}
    assert settings.origins["checkpoint", "keep_last"] == f"{path}: plugins.checkpoint.keep_last"


@pytest.mark.parametrize("name", ["cartpole", "arithmetic", "addition", "grpo", "sft"])
def test_the_shown_config_read_as_a_run_file_is_the_task(name: str, write: Write) -> None:
    task = find_task(name, PluginManager())
    file = read_run_file(Path(write(show_config(name, settings=ALONE))))
    assert (file.task, file.settings) == (name, {})
    # Over a config with other values, to see that every value is in the file.
    other = replace(task.config, epochs=999, threads=99, losses=None, optimizer=OptimizerConfig("sgd"))
    assert apply_layers(other, [file.config]) == task.config


def test_training_the_shown_file_equals_training_the_task_with_assignments(write: Write) -> None:
    assignments = [*SMALL, "seed=3", "optimizer.max_grad_norm=none"]
    once = hookline.train("cartpole", assignments=assignments, settings=ALONE)
    again = hookline.train(write(show_config("cartpole", assignments, ALONE)), settings=ALONE)
    assert as_plain_data(once.config) == as_plain_data(again.config)
    for name, weights in once.policy.state_dict().items():
        assert weights.equal(again.policy.state_dict()[name])


@dataclass
class Strange(TrainerConfig):
    """A config with values that need care in TOML."""

    text: str = 'quotes " and \\ and \x7f and ü'
    """A text that is quoted."""
    by_name: dict[str, Any] = field(default_factory=lambda: {"a b": [1, 2.5, None], "ok-key": {"x": True}})
    function: Callable[[], int] = lambda: 1


def test_the_shown_file_has_docstrings_and_quotes_what_needs_it_and_comments_out_what_is_no_data(write: Write) -> None:
    text = run_file_text("own.py:x", Strange(), {"plugins": {"checkpoint": {"every": 2}}})
    assert "# A text that is quoted.\ntext = " in text
    assert "# Clip the norm of the gradient to this value" in text
    assert "# function cannot be written: <function" in text
    file = read_run_file(Path(write(text)))
    assert file.settings == {"plugins": {"checkpoint": {"every": 2}}}
    config = apply_layers(Strange(text="", by_name={}), [file.config])
    assert (config.text, config.by_name) == (Strange().text, Strange().by_name)


def test_the_command_prints_the_file_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--show-config", "cartpole", "--set", "optimizer.learning_rate=0.125", "--epochs", "3"])
    assert ended.value.code in (None, 0)
    printed = capsys.readouterr().out
    assert printed.startswith('task = "cartpole"\n\nepochs = 3\n')
    assert "learning_rate = 0.125" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_run_from_a_file_is_rebuilt_after_the_file_is_gone(tmp_path: Path, write: Write) -> None:
    path = write('task = "cartpole"\n[rollout]\nnum_environments = 4\nsteps_per_rollout = 8\nminibatches = 2\n')
    run_dir = tmp_path / "run"
    hookline.train(path, settings=ALONE, epochs=1, run_dir=run_dir)
    Path(path).unlink()
    shutil.move(run_dir, tmp_path / "moved")
    trainer = rebuild_trainer(tmp_path / "moved")
    assert (trainer.config.task, trainer.config.rollout.num_environments) == ("cartpole", 4)


def test_a_resumed_run_keeps_what_it_recorded_and_says_what_it_ignores(
    tmp_path: Path, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline")
    sizes = "[rollout]\nnum_environments = 4\nsteps_per_rollout = 8\nminibatches = 2\n"
    path = write(f'task = "cartpole"\nepochs = 2\nseed = 5\nrun_dir = "run"\n{sizes}')
    off = Settings(disabled=dict.fromkeys(("metrics", "evaluation", "status"), "a test"))
    hookline.train(path, settings=off)
    write(f'task = "cartpole"\nepochs = 9\nseed = 6\nrun_dir = "run"\n{sizes}')
    resumed = hookline.train(path, settings=off, assignments=["epochs=3"], resume=True)
    assert (resumed.config.epochs, resumed.config.seed, resumed.state.epoch) == (3, 5, 2)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["trainer"]["seed"] == 5
    ignored = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert ignored == [
        f"{path}: epochs is ignored: the resumed run keeps its recorded value 2; change it by --set epochs=...",
        f"{path}: seed is ignored: the resumed run keeps its recorded value 5; change it by --set seed=...",
    ]


def test_the_parts_of_a_task_that_its_config_names_are_given_by_name() -> None:
    built: list[TrainerConfig] = []

    def build(config: TrainerConfig, plugins: PluginManager) -> Trainer:
        built.append(config)
        raise HooklineError("enough")

    with pytest.raises(HooklineError, match="enough"):
        hookline.train(Task(build), policy="some/model", settings=ALONE)
    assert built[0].policy == "some/model"
    with pytest.raises(HooklineError, match="a task has its own dataset: pass a TrainerConfig"):
        hookline.train(Task(build), dataset="x.jsonl", settings=ALONE)
