"""Tasks by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hookline
from hookline import PluginManager, hookimpl
from hookline.plugin_manager import HooklineError, PluginError
from hookline.plugin_manager.registry import DuplicateNameError
from hookline.plugin_manager.settings import Settings
from hookline.rollout.text import ArithmeticProblems, TextProblem
from hookline.session import RunFolderError
from hookline.training import RolloutConfig, Task, Trainer, TrainerConfig
from hookline.training.config import as_plain_data, from_plain_data
from hookline.training.errors import TrainerConfigError, TrainingError, UnknownTaskError
from hookline.training.run import rebuild_trainer, recorded_config
from hookline.training.tasks import find_task
from hookline.training.tasks.arithmetic import arithmetic
from hookline.training.tasks.cartpole import cartpole


class Offers:
    def __init__(self, **tasks: Any) -> None:
        self.tasks = tasks

    @hookimpl
    def register_tasks(self) -> Mapping[str, Any]:
        return self.tasks


def test_a_task_makes_a_trainer_that_runs(hookline_manager: PluginManager) -> None:
    assert find_task("cartpole", hookline_manager) is cartpole
    sizes = RolloutConfig(4, 8, minibatches=2, update_epochs=1)
    assert cartpole.trainer(hookline_manager, epochs=1, rollout=sizes).train().step == 2


def test_no_run_of_arithmetic_looks_at_the_problems_that_it_is_reported_by(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    draw = ArithmeticProblems.__call__

    def noted(problems: ArithmeticProblems, generator: Any) -> TextProblem:
        drawn.add(problems.part)
        return draw(problems, generator)

    monkeypatch.setattr(ArithmeticProblems, "__call__", noted)
    sizes = RolloutConfig(2, samples_per_prompt=2, rollouts_per_epoch=50, minibatches=1, update_epochs=1)
    shown = arithmetic.trainer(PluginManager(), epochs=1, threads=1, rollout=sizes)
    shown.train()
    played = arithmetic.trainer(PluginManager(), epochs=1, threads=1, rollout=sizes)
    phases = played.loop.state_dict()
    phases["warm_start"]["is_over"] = True
    played.loop.load_state_dict(phases)
    played.train()
    assert shown.worker is not None
    assert played.worker is not None
    assert (shown.worker.step, played.worker.step) == (0, 50)
    assert drawn == {"training"}


def test_a_plugin_brings_tasks(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(chess=cartpole))
    assert find_task("chess", hookline_manager) is cartpole


def test_a_task_that_is_given_twice_is_an_error_that_names_both(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(cartpole=cartpole), "one")
    with pytest.raises(DuplicateNameError, match="hookline itself and plugin 'one' both register a task 'cartpole'"):
        find_task("addition", hookline_manager)


@pytest.mark.parametrize("answer", [7, {3: cartpole}, [cartpole]])
def test_a_plugin_that_gives_no_dictionary_of_tasks_has_failed_and_the_others_are_there(
    hookline_manager: PluginManager, answer: Any
) -> None:
    odd = Offers()
    odd.tasks = answer
    hookline_manager.register(odd, "odd")
    hookline_manager.register(Offers(chess=cartpole))
    assert find_task("chess", hookline_manager) is cartpole
    (fault,) = hookline_manager.faults.faults.values()
    assert (fault.plugin, fault.event) == ("odd", "register_tasks")
    assert f"register_tasks must return a dictionary with a task for each name, not {answer!r}" in fault.error


def test_a_critical_plugin_that_gives_no_dictionary_of_tasks_is_an_error(hookline_manager: PluginManager) -> None:
    odd = Offers()
    odd.tasks, odd.critical = 7, True
    hookline_manager.register(odd, "odd")
    with pytest.raises(PluginError, match="register_tasks must return a dictionary with a task for each name, not 7"):
        find_task("cartpole", hookline_manager)


def test_a_task_that_makes_no_trainer_is_an_error_that_names_its_function(hookline_manager: PluginManager) -> None:
    def forgetful(config: TrainerConfig, plugins: PluginManager) -> None:
        Trainer(config, plugins=plugins)

    hookline_manager.register(Offers(chess=forgetful))
    with pytest.raises(
        TrainingError, match=r"the task's function '.*forgetful' returned None: it must return a Trainer"
    ):
        find_task("chess", hookline_manager).trainer(hookline_manager)


def test_a_file_that_exits_is_an_error_that_names_it(tmp_path: Path, hookline_manager: PluginManager) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)")
    with pytest.raises(
        HooklineError, match=r"the file '.*leaves.py' raised SystemExit\(0\), which would end the process"
    ):
        find_task(f"{tmp_path}/leaves.py:task", hookline_manager)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_not_all_generators_take_is_an_error(seed: int) -> None:
    with pytest.raises(TrainerConfigError, match=f"seed must be from 0 to 4294967295, got {seed}"):
        Trainer(TrainerConfig(seed=seed))


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE"])
def test_an_odd_rank_in_the_environment_is_an_error_that_names_the_variable(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(
        HooklineError, match=f"variable {variable} must be a whole number, as torchrun sets it, got 'x'"
    ):
        hookline.train("cartpole", settings=Settings(allowed={}))


OWN_TASK = """
from hookline.training import RolloutConfig, Trainer, task
from neighbour import EPOCHS

@task(epochs=EPOCHS, rollout=RolloutConfig(4, 8, minibatches=2, update_epochs=1))
def balance(config, plugins):
    return Trainer(config, plugins=plugins)

def plain(config, plugins):
    return Trainer(config, plugins=plugins)

number = 5
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "own_file.py"
    file.write_text(OWN_TASK)
    (tmp_path / "neighbour.py").write_text("EPOCHS = 3")
    return file


def test_a_task_is_found_in_a_file_beside_what_the_file_imports(
    own_file: Path, hookline_manager: PluginManager
) -> None:
    found = find_task(f"{own_file}:balance", hookline_manager)
    assert isinstance(found, Task)
    assert found.config.epochs == 3
    assert isinstance(find_task(f"{own_file}:plain", hookline_manager).trainer(hookline_manager), Trainer)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}", r"name a task in '.*own_file.py', as .*own_file.py:NAME; it has balance"),
        ("{file}:balanse", r"there is no 'balanse' in '.*own_file.py' \(did you mean 'balance'\?\)"),
        ("{file}:number", r"is a int, not a task: a task is a function \(config, plugins\) -> Trainer"),
        ("nowhere/task.py:balance", r"there is no file 'nowhere/task.py'"),
        ("cartpol", r"there is no task 'cartpol' \(did you mean 'cartpole'\?\); known are .*path/to/file.py:NAME"),
    ],
)
def test_a_task_that_is_not_there_is_an_error_that_helps(
    name: str, message: str, own_file: Path, hookline_manager: PluginManager
) -> None:
    with pytest.raises(UnknownTaskError, match=message):
        find_task(name.format(file=own_file), hookline_manager)


def test_a_trainer_is_built_again_from_the_folder_of_its_run(own_file: Path, tmp_path: Path) -> None:
    trainer = hookline.train(
        f"{own_file}:balance", run_dir=tmp_path / "run", epochs=1, seed=7, settings=Settings(allowed={})
    )
    again = rebuild_trainer(tmp_path / "run")
    assert again.state.run_dir is None
    assert as_plain_data(again.config) == {**as_plain_data(trainer.config), "run_dir": None}


def test_a_run_of_no_task_cannot_be_built_again(tmp_path: Path) -> None:
    config = TrainerConfig(1, run_dir=tmp_path / "run", rollout=RolloutConfig(4, 8, minibatches=2, update_epochs=1))
    hookline.train(config, settings=Settings(allowed={}))
    with pytest.raises(RunFolderError, match=r"was not started by the name of a task.*hookline train TASK"):
        rebuild_trainer(tmp_path / "run")


def test_a_task_takes_no_parts_of_ones_own() -> None:
    with pytest.raises(hookline.errors.HooklineError, match="a task has its own policy"):
        hookline.train("cartpole", policy=object(), settings=Settings(allowed={}))


def test_a_config_of_another_version_names_what_does_not_fit() -> None:
    with pytest.raises(TrainerConfigError, match=r"epochs: .*got 'many'"):
        from_plain_data(TrainerConfig, {"epochs": "many"})


def test_a_resumed_run_has_the_config_that_it_began_with_but_for_what_is_said_otherwise(tmp_path: Path) -> None:
    pytest.importorskip("hookline_checkpoint")
    folder = tmp_path / "run"
    sizes = RolloutConfig(4, 8, minibatches=2, update_epochs=1)
    own = Settings(allowed={"checkpoint": "here"}, options={"checkpoint": {"every": 1}})
    hookline.train("cartpole", run_dir=folder, epochs=2, seed=5, rollout=sizes, settings=own)
    resumed = hookline.train("cartpole", run_dir=folder, resume=True, epochs=3, settings=own)
    assert (resumed.config.seed, resumed.config.epochs, resumed.config.rollout) == (5, 3, sizes)
    assert resumed.state.epoch == 2
    explicit = TrainerConfig(4, seed=6, rollout=sizes, run_dir=folder, resume=True, task="cartpole")
    assert hookline.train(explicit, settings=own).config.seed == 6
    assert recorded_config(cartpole.config, "addition", folder) is cartpole.config
    written = json.loads((folder / "config.json").read_text())
    written["trainer"]["losses"] = {"mine": {"api_key": "********"}}
    (folder / "config.json").write_text(json.dumps(written))
    with pytest.raises(TrainerConfigError, match="losses contains a secret, which is not recorded: pass it again"):
        recorded_config(cartpole.config, "cartpole", folder)
