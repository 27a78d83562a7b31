"""The entry for functions: `main(custom_logger_fns=[...], hook_fns={...})` runs a supervised training with them.

    def announce(worker, report_data):
        print("step", report_data["current_step"], "of", report_data["total_steps"])

    main(hook_fns={"post_training_step_hook": announce})

Importing this imports no framework; `main` does.
"""

from hookline.launcher.entry import main
from hookline.launcher.hook_functions import HOOK_NAMES, PolicyWorker

__all__ = ["HOOK_NAMES", "PolicyWorker", "main"]
