"""Tells others of a run: `status.json` in its folder, and messages and heartbeats to an HTTP endpoint.

As a plugin it needs an endpoint in config and nothing else. The functions are for `hookline.launcher.main`.
"""

from hookline_status.functions import create_status_logger, create_training_hooks, create_validation_hooks
from hookline_status.plugin import Options, Status
from hookline_status.tao import TAOStatusLogger

__all__ = [
    "Options",
    "Status",
    "TAOStatusLogger",
    "create_status_logger",
    "create_training_hooks",
    "create_validation_hooks",
]
