"""`hookline.launcher.main`: functions as loggers and hooks."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("torch")

from hookline.errors import HooklineError
from hookline.hooks.functions import UnknownHookError
from hookline.launcher import HOOK_NAMES, main
from hookline.plugin_manager.settings import Settings
from hookline.policies import TransformerPolicy
from hookline.training import SupervisedConfig, Trainer, TrainerConfig

NO_PLUGINS = Settings(allowed={})


def run(**functions: Any) -> Trainer:
    """A run of two epochs and four steps, with validations after the second and the last."""
    return main(
        TrainerConfig(epochs=2, supervised=SupervisedConfig(batch_size=4, validate_every=2)),
        policy=TransformerPolicy(vocabulary=10, width=16, layers=1, heads=2, context=8),
        dataset=[{"tokens": [2, 3, 4, 5]}] * 8,
        validation_dataset=[{"tokens": [2, 3, 4]}],
        settings=NO_PLUGINS,
        **functions,
    )


def test_each_logger_is_called_once_for_each_report() -> None:
    one: list[tuple[int, dict[str, Any]]] = []
    other: list[tuple[int, dict[str, Any]]] = []
    run(custom_logger_fns=[lambda data, step: one.append((step, data)), lambda data, step: other.append((step, data))])
    assert [step for step, _ in one] == [1, 2, 2, 3, 4, 4]
    assert ["val_avg_loss" in data for _, data in one] == [False, False, True, False, False, True]
    assert one == other


def test_loggers_are_called_in_their_order() -> None:
    seen: list[str] = []
    run(custom_logger_fns=[lambda data, step: seen.append("first"), lambda data, step: seen.append("second")])
    assert seen == ["first", "second"] * 6


def test_every_hook_is_called_with_the_worker_and_the_report() -> None:
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in HOOK_NAMES}
    workers = []

    def remember(name: str) -> Any:
        def hook(worker: Any, report_data: dict[str, Any]) -> None:
            workers.append(worker)
            seen[name].append(report_data)

        return hook

    trainer = run(hook_fns={name: remember(name) for name in HOOK_NAMES})
    assert {name: len(reports) for name, reports in seen.items()} == {
        "pre_training_hook": 1,
        "pre_training_step_hook": 4,
        "post_training_step_hook": 4,
        "post_training_hook": 1,
        "pre_validation_hook": 2,
        "pre_per_step_validation_hook": 2,
        "post_per_step_validation_hook": 2,
        "post_validation_hook": 2,
    }
    assert all(worker.trainer is trainer and worker.config.epochs == 2 for worker in workers)
    assert workers[0].policy is trainer.policy
    assert workers[0].state is trainer.state
    assert seen["pre_training_hook"] == [{"total_epochs": 2, "total_steps": 4, "start_epoch": 0, "start_step": 0}]
    assert [report["current_step"] for report in seen["post_training_step_hook"]] == [1, 2, 3, 4]
    assert isinstance(seen["post_training_hook"][0]["final_val_loss"], float)


def test_several_functions_of_one_hook_are_called_in_their_order() -> None:
    seen: list[str] = []
    hooks = [lambda worker, data: seen.append("one"), lambda worker, data: seen.append("two")]
    run(hook_fns={"pre_training_hook": hooks, "post_training_hook": lambda worker, data: seen.append("end")})
    assert seen == ["one", "two", "end"]


def test_an_unknown_hook_is_an_error_with_the_nearest() -> None:
    with pytest.raises(
        UnknownHookError, match=r"there is no hook 'pre_train_hook' \(did you mean 'pre_training_hook'\?\); known are"
    ):
        run(hook_fns={"pre_train_hook": print})


def test_what_cannot_be_called_is_an_error() -> None:
    with pytest.raises(UnknownHookError, match="pre_training_hook: 'beep' is not a function"):
        run(hook_fns={"pre_training_hook": ["beep"]})
    with pytest.raises(HooklineError, match="custom_logger_fns: None is not a function"):
        run(custom_logger_fns=[None])


def test_one_function_in_place_of_a_list_is_an_error_that_says_what_to_write() -> None:
    def log(report_data: dict[str, Any], step: int) -> None: ...

    with pytest.raises(HooklineError, match=r"custom_logger_fns must be a list of functions: write \[log\]"):
        run(custom_logger_fns=log)
    with pytest.raises(HooklineError, match="custom_logger_fns must be a list of functions, not 3"):
        run(custom_logger_fns=3)
    with pytest.raises(UnknownHookError, match="hook_fns must be a dictionary of functions by hook name, not"):
        run(hook_fns=[log])
    with pytest.raises(UnknownHookError, match="pre_training_hook: 3 is not a function or a list of"):
        run(hook_fns={"pre_training_hook": 3})


def test_a_logger_that_raises_is_reported_and_does_not_stop_training(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(report_data: dict[str, Any], step: int) -> None:
        raise ConnectionError("connection refused")

    seen: list[int] = []
    with caplog.at_level(logging.WARNING):
        trainer = run(custom_logger_fns=[broken, lambda data, step: seen.append(step)])
    assert trainer.state.step == 4
    assert seen == [1, 2, 2, 3, 4, 4]
    assert "connection refused" in caplog.text
    assert "ConnectionError: connection refused" in " ".join(capsys.readouterr().err.split())


def test_a_hook_that_raises_is_treated_by_its_error_policy() -> None:
    def broken(worker: Any, report_data: dict[str, Any]) -> None:
        raise RuntimeError("no")

    assert run(hook_fns={"pre_training_hook": broken}).state.step == 4
    broken.critical = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no"):
        run(hook_fns={"pre_training_hook": broken})


def test_without_a_dataset_a_small_task_is_learnt() -> None:
    losses: list[float] = []
    main(
        custom_logger_fns=[lambda data, step: losses.append(data["val_avg_loss"]) if "val_avg_loss" in data else None],
        settings=NO_PLUGINS,
    )
    assert losses[-1] < losses[0] < 2.6  # the logarithm of the number of tokens: what knowing nothing gives
