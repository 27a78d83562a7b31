"""`main(custom_logger_fns=[...], hook_fns={...})`: supervised training with functions as hooks.

    def announce(worker, report_data):
        print("step", report_data["current_step"], "of", report_data["total_steps"])

    main(hook_fns={"post_training_step_hook": announce})

Importing this imports no framework; `main` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookline.hooks.functions import (
    HOOK_NAMES,
    PolicyWorker,
    check_hook_functions,
    check_loggers,
    register_hook_functions,
    register_loggers,
)
from hookline.plugin_manager.settings import Settings
from hookline.session.opening import plugins_for_a_run

if TYPE_CHECKING:
    from hookline.training import Trainer, TrainerConfig

__all__ = ["HOOK_NAMES", "PolicyWorker", "main"]


def main(
    config: TrainerConfig | None = None,
    *,
    policy: Any = None,
    dataset: Any = None,
    validation_dataset: Any = None,
    custom_logger_fns: Sequence[Callable[[dict[str, Any], int], None]] = (),
    hook_fns: Mapping[str, Callable[..., None] | Iterable[Callable[..., None]]] | None = None,
    settings: Settings | None = None,
) -> Trainer:
    """Train on a dataset and call functions at its events. Returns the trainer.

    :param policy: a torch module or a `TransformerPolicy`.
    :param dataset: examples to train on. The default is a small built-in addition task.
    :param custom_logger_fns: called with each report and its step.
    :param hook_fns: functions by hook name (see `HOOK_NAMES`), called with the worker and the event's report.
    :param settings: the settings of plugins (default: from this folder and the environment).
    """
    loggers, functions = check_loggers(custom_logger_fns), check_hook_functions(hook_fns or {})
    from hookline.training import Trainer
    from hookline.training.tasks.arithmetic import addition

    with plugins_for_a_run(settings=settings) as plugins:
        if dataset is None:
            trainer = addition.trainer(plugins) if config is None else addition.build(config, plugins)
        else:
            trainer = Trainer(
                config, policy=policy, dataset=dataset, validation_dataset=validation_dataset, plugins=plugins
            )
        register_loggers(plugins, loggers)
        register_hook_functions(plugins, trainer, functions)
        trainer.train()
    return trainer
