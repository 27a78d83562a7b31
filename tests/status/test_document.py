"""Every code block of the document on loggers and hooks, with only its import lines changed, against a real server.

The document's endpoints are names and ports that do not exist here. The test stands in for the network: the names
resolve to loopback, and connections to their ports reach the test's server. The blocks are not touched for that.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hookline.launcher import HOOK_NAMES
from hookline_status.functions import close_deliveries

CUSTOM_LOGGER_SIGNATURE = '''
def custom_logger_fn(report_data: Dict[str, Any], step: int) -> None:
    """
    Args:
        report_data: Dictionary containing training/validation metrics
        step: Current training step
    """
    pass
'''

STATUS_LOGGER = """
from hookline.launcher import main
from hookline_status import create_status_logger

# Create a custom logger that sends status to an external endpoint
status_logger = create_status_logger(
    endpoint="http://monitoring-server/api/status",
    component_name="My SFT Training"
)

main(custom_logger_fns=[status_logger])
"""

HOOK_SIGNATURE = '''
def hook_fn(worker, report_data: Dict[str, Any]) -> None:
    """
    Args:
        worker: The SFTPolicyWorker instance (access to trainer, config, etc.)
        report_data: Dictionary containing context-specific data
    """
    pass
'''

TAO = """
from hookline.launcher import main
from hookline_status import TAOStatusLogger

# Create TAO-style status logger
tao_logger = TAOStatusLogger(
    status_endpoint="http://tao-server/api/status",
    experiment_name="sft-experiment-001"
)

# Launch with both custom logger and hooks
main(
    custom_logger_fns=[tao_logger.log_status],
    hook_fns=tao_logger.get_hooks(),
)
"""

INDIVIDUAL_CREATORS = """
from hookline.launcher import main
from hookline_status import (
    create_status_logger,
    create_training_hooks,
    create_validation_hooks,
)

# Create custom logger
logger_fn = create_status_logger(
    endpoint="http://localhost:8080/status",
    component_name="Training Monitor"
)

# Create hooks
training_hooks = create_training_hooks(
    status_endpoint="http://localhost:8080/status",
    heartbeat_interval=10  # Send heartbeat every 10 steps
)
validation_hooks = create_validation_hooks(
    status_endpoint="http://localhost:8080/status"
)

# Merge all hooks
all_hooks = {**training_hooks, **validation_hooks}

main(
    custom_logger_fns=[logger_fn],
    hook_fns=all_hooks,
)
"""

STEPS = 32  # of the small task that is learnt without a dataset


@pytest.fixture
def received(status_server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A server that stands at every host and port of the document."""
    resolve, connect = socket.getaddrinfo, socket.create_connection

    def name_service(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve("127.0.0.1" if host in ("monitoring-server", "tao-server") else host, *args, **kwargs)

    def network(address: Any, *args: Any, **kwargs: Any) -> Any:
        to_us = address[0] in ("127.0.0.1", "::1") and address[1] in (80, 8080)
        return connect(("127.0.0.1", status_server.server_port) if to_us else address, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", name_service)
    monkeypatch.setattr(socket, "create_connection", network)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield status_server
    close_deliveries()


def run(block: str) -> dict[str, Any]:
    """Run a block as a script would be, to the exit of its process."""
    namespace: dict[str, Any] = {}
    exec(compile(block, "<document>", "exec"), namespace)
    close_deliveries()
    return namespace


def test_a_status_logger_sends_every_report(received: Any) -> None:
    run(STATUS_LOGGER)
    assert {(host, path) for host, path, _ in received.messages} == {("monitoring-server", "/api/status")}
    assert {tuple(body) for body in received.bodies()} == {("component", "step", "timestamp", "metrics")}
    assert {body["component"] for body in received.bodies()} == {"My SFT Training"}
    training = [body["step"] for body in received.bodies() if "val_avg_loss" not in body["metrics"]]
    assert training == list(range(1, STEPS + 1))
    assert [body["step"] for body in received.bodies() if "val_avg_loss" in body["metrics"]] == [16, 32]


def test_tao_sees_the_whole_experiment(received: Any) -> None:
    run(TAO)
    assert {(host, path) for host, path, _ in received.messages} == {("tao-server", "/api/status")}
    assert {body["component"] for body in received.bodies()} == {"sft-experiment-001"}
    assert {body["phase"] for body in received.bodies() if "phase" in body} == {
        "training_heartbeat", "validation_heartbeat", *HOOK_NAMES.values(),
    }  # fmt: skip
    assert [body["step"] for body in received.bodies() if "step" in body][-1] == STEPS
    assert received.bodies()[-1]["phase"] == "post_training"
    assert received.bodies()[-1]["data"]["status"] == "SUCCESS"


def test_the_creators_together_see_the_whole_run(received: Any) -> None:
    run(INDIVIDUAL_CREATORS)
    assert {(host, path) for host, path, _ in received.messages} == {("localhost:8080", "/status")}
    assert {body["component"] for body in received.bodies() if "step" in body} == {"Training Monitor"}
    assert [data["current_step"] for data in received.data_of("training_heartbeat")] == [10, 20, 30]
    assert received.data_of("validation_heartbeat")
    assert len(received.data_of("post_validation")) == 2
    assert [data["status"] for data in received.data_of("pre_training")] == ["STARTED"]
    assert [data["status"] for data in received.data_of("post_training")] == ["SUCCESS"]


def test_events_carry_what_the_documents_table_says(received: Any) -> None:
    run(INDIVIDUAL_CREATORS)
    table = {
        "pre_training": {"total_epochs", "total_steps", "start_epoch", "start_step"},
        "pre_training_step": {"current_epoch", "current_step", "total_steps"},
        "post_training_step": {"current_epoch", "current_step", "total_steps", "train/loss"},
        "post_training": {"final_epoch", "final_step", "total_steps", "final_val_loss"},
        "pre_validation": {"current_epoch", "is_last_step"},
        "pre_validation_step": {"current_epoch", "batch_index"},
        "post_validation_step": {"current_epoch", "batch_index", "val_score"},
        "post_validation": {"current_epoch", "val_avg_loss"},
    }
    for phase, keys in table.items():
        assert keys <= received.data_of(phase)[0].keys(), phase


def test_functions_of_the_documents_signatures_can_be_given(received: Any) -> None:
    from hookline.launcher import main

    namespace = {"Dict": dict, "Any": Any}
    exec(CUSTOM_LOGGER_SIGNATURE + HOOK_SIGNATURE, namespace)
    trainer = main(
        custom_logger_fns=[namespace["custom_logger_fn"]],
        hook_fns=dict.fromkeys(HOOK_NAMES, namespace["hook_fn"]),
    )
    assert trainer.state.step == STEPS
    assert not trainer.plugins.faults
    assert received.messages == []
