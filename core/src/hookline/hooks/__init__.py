"""Hooks in the class style: `should_run` says when, `run` says what. Each is a plugin underneath.

    class Monitor(PeriodicHook):
        def run(self, context):
            return {"monitor.step": context.step}

    worker.register_hook(Monitor(frequency=25))

`logging.getLogger("hookline.hooks")` at DEBUG shows each execution.
"""

from hookline.hooks.checkpoint import CheckpointHook
from hookline.hooks.composite import CompositeHook
from hookline.hooks.evaluation import EvaluationHook
from hookline.hooks.hook import Hook
from hookline.hooks.manager import HookManager
from hookline.hooks.metrics import MetricsHook
from hookline.hooks.periodic import PeriodicHook
from hookline.hooks.worker_log import LoggingHook
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
