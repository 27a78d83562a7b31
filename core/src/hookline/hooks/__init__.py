"""Older hook styles, each adapted to plugins: hook classes, trainer hooks, and functions.

`Hook` is the class style: `should_run` decides when, `run` does the work.

    class Monitor(PeriodicHook):
        def run(self, context):
            return {"monitor.step": context.step}

    worker.register_hook(Monitor(frequency=25))

`logging.getLogger("hookline.hooks")` at DEBUG shows each execution. Trainer hooks are described in
`hookline_hookspecs.trainer_hook`, functions in `hookline.launcher`.
"""

from hookline.hooks.hook import (
    CheckpointHook,
    CompositeHook,
    EvaluationHook,
    Hook,
    LoggingHook,
    MetricsHook,
    PeriodicHook,
)
from hookline.hooks.hook_manager import HookManager
from hookline_hookspecs import HookContext

__all__ = [
    "CheckpointHook",
    "CompositeHook",
    "EvaluationHook",
    "Hook",
    "HookContext",
    "HookManager",
    "LoggingHook",
    "MetricsHook",
    "PeriodicHook",
]
