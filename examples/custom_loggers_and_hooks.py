"""Loggers and hooks as plain functions: your own, and those of hookline-status, in one run.

    python examples/custom_loggers_and_hooks.py

It starts a small monitoring server on loopback, trains a tiny transformer on addition for a few seconds, and prints
what the server received. The trainer does not change.
"""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hookline.launcher import main
from hookline_status import create_status_logger, create_training_hooks, create_validation_hooks

RECEIVED: list[dict[str, Any]] = []


class Monitor(BaseHTTPRequestHandler):
    """The monitoring system: it accepts JSON by POST."""

    def do_POST(self) -> None:
        RECEIVED.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


# -- functions of your own ---------------------------------------------------------------------------------------------


def print_validations(report_data: dict[str, Any], step: int) -> None:
    """A logger: called with every report, of a step or of a validation."""
    if "val_avg_loss" in report_data:
        print(f"step {step}: validation loss {report_data['val_avg_loss']:.3f}")


def announce(worker: Any, report_data: dict[str, Any]) -> None:
    """A hook: called at its event, with a worker that has the trainer, the policy and the config."""
    print(f"training {type(worker.policy).__name__} for {report_data['total_steps']} steps")


def print_half_way(worker: Any, report_data: dict[str, Any]) -> None:
    """Another hook, which prints at one step only."""
    if report_data["current_step"] == report_data["total_steps"] // 2:
        print(f"half way, in epoch {worker.state.epoch}: training loss {report_data['train/loss']:.3f}")


def run(endpoint: str) -> None:
    logger_fn = create_status_logger(endpoint=endpoint, component_name="Training Monitor")
    training_hooks = create_training_hooks(status_endpoint=endpoint, heartbeat_interval=10)
    validation_hooks = create_validation_hooks(status_endpoint=endpoint)

    # Each name has one function, or a list of functions that are called in order.
    all_hooks = {
        **training_hooks,
        **validation_hooks,
        "pre_training_hook": [announce, training_hooks["pre_training_hook"]],
        "post_training_step_hook": [print_half_way, training_hooks["post_training_step_hook"]],
    }
    main(custom_logger_fns=[print_validations, logger_fn], hook_fns=all_hooks)


def wait_for_the_end(seconds: float = 30.0) -> None:
    """Wait for the last message, which another thread may still be sending when `main` returns."""
    for _ in range(int(seconds * 100)):
        if any(message.get("phase") == "post_training" for message in list(RECEIVED)):
            return
        time.sleep(0.01)


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Monitor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run(f"http://127.0.0.1:{server.server_port}/status")
        wait_for_the_end()
        server.shutdown()
    statuses = [message for message in RECEIVED if "step" in message]
    print(f"the monitor received {len(statuses)} statuses, the last of step {statuses[-1]['step']}, and these events:")
    for phase, count in Counter(message["phase"] for message in RECEIVED if "phase" in message).items():
        print(f"  {count:3} x {phase}")
