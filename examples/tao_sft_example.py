"""Supervised fine-tuning that reports its status to a TAO-like system, by HTTP and in `status.json`.

    python examples/tao_sft_example.py [RUN_DIR]

A server on loopback stands in for TAO. The functions report the experiment to it, and the status plugin writes
`status.json` to the run's folder. A server that is slow, hangs or dies does not slow training: messages that it has not
accepted are kept on disk.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hookline.launcher import main
from hookline.training import OptimizerConfig, SupervisedConfig, TrainerConfig
from hookline_status import TAOStatusLogger

RECEIVED: list[dict[str, Any]] = []


class TAO(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        RECEIVED.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def train(endpoint: str, run_dir: Path) -> None:
    tao_logger = TAOStatusLogger(status_endpoint=endpoint, experiment_name="sft-experiment-001")
    main(
        TrainerConfig(
            run_dir=run_dir,
            epochs=4,
            optimizer=OptimizerConfig(learning_rate=3e-3, max_grad_norm=1.0),
            supervised=SupervisedConfig(batch_size=32, validate_every=16),
        ),
        custom_logger_fns=[tao_logger.log_status],
        hook_fns=tao_logger.get_hooks(),
    )


def status_of(message: dict[str, Any]) -> str | None:
    status: str | None = message.get("data", {}).get("status")
    return status


if __name__ == "__main__":
    run_dir = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tao-sft-example")
    with ThreadingHTTPServer(("127.0.0.1", 0), TAO) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        train(f"http://127.0.0.1:{server.server_port}/api/status", run_dir)
        until = time.monotonic() + 30
        while not any(status_of(message) == "SUCCESS" for message in list(RECEIVED)) and time.monotonic() < until:
            time.sleep(0.01)  # the last messages are still being sent
        server.shutdown()
    print("TAO received by HTTP:")
    for message in RECEIVED:
        if "phase" in message:
            print(f"  {message['timestamp'][11:23]} {message['phase']:22} {status_of(message) or ''}")
    print(f"and {run_dir / 'status.json'} has:")
    for entry in json.loads((run_dir / "status.json").read_text()):
        print(f"  {entry['date'][11:19]} {entry['status']:8} {entry['message']}")
