"""The entry for functions: `main(custom_logger_fns=[...], hook_fns={...})` runs a supervised training with them.

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
    """Train on a dataset, with functions called at the moments of it; returns the trainer.

    :param policy: a torch module or a `TransformerPolicy`.
    :param dataset: examples to learn from. Without one, a small task of Hookline's own is learnt.
    :param custom_logger_fns: called with each report and its step.
    :param hook_fns: called with the worker and the moment's report, by the names of `HOOK_NAMES`.
    :param settings: which installed plugins are wanted, and how (default: those of this folder and environment).
    """
    loggers, functions = check_loggers(custom_logger_fns), check_hook_functions(hook_fns or {})
    from hookline.training import Trainer
    from hookline.training.tasks.addition import addition

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
