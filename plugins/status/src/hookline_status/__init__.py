"""Reports the status of a run: `status.json` in its folder, and messages and heartbeats to an HTTP endpoint.

The plugin needs only an endpoint in its options. The functions are for `hookline.launcher.main`.
"""

from hookline_status.functions import (
    TAOStatusLogger,
    create_status_logger,
    create_training_hooks,
    create_validation_hooks,
)
from hookline_status.plugin import Options, Status

__all__ = [
    "Options",
    "Status",
    "TAOStatusLogger",
    "create_status_logger",
    "create_training_hooks",
    "create_validation_hooks",
]
