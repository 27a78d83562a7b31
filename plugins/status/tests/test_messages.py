"""How messages read."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest

from hookline_status.messages import MAX_BODY, Kind, Message, encode


def body_of(data: dict[str, Any], **head: Any) -> Any:
    return json.loads(encode(Message(**{"kind": Kind.REPORT, "component": "c", "time": 0.0, "data": data, **head})))


def test_a_status_has_component_step_timestamp_and_metrics() -> None:
    assert body_of({"train/loss": 0.5}, component="My SFT Training", step=7, time=1772366400.5) == {
        "component": "My SFT Training",
        "step": 7,
        "timestamp": "2026-03-01T12:00:00.500+00:00",
        "metrics": {"train/loss": 0.5},
    }


def test_an_event_has_component_phase_timestamp_and_data() -> None:
    assert body_of({"is_last_step": True}, phase="pre_validation") == {
        "component": "c",
        "phase": "pre_validation",
        "timestamp": "1970-01-01T00:00:00.000+00:00",
        "data": {"is_last_step": True},
    }


def test_values_become_what_json_can_hold() -> None:
    values = {
        "nan": math.nan, "inf": -math.inf, "numpy": numpy.float32(0.5), "count": numpy.int64(3), "one": numpy.array([2.5]),
        "array": numpy.zeros(5), "none": None, "nested": {"list": [1, (True, "x")]}, "object": object(), 5: "name",
    }  # fmt: skip
    assert body_of(values)["metrics"] == {
        "nan": None, "inf": None, "numpy": 0.5, "count": 3, "one": 2.5, "array": "<ndarray>", "none": None,
        "nested": {"list": [1, [True, "x"]]}, "object": "<object>", "5": "name",
    }  # fmt: skip


def test_a_value_without_end_is_cut_off() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert len(json.dumps(body_of(endless))) < 500


def test_an_object_that_cannot_be_read_costs_the_message_its_data_and_no_more() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError

    body = body_of({"loss": 0.5, "broken": Broken()}, step=3)
    assert (body["step"], body["metrics"]) == (3, {"left_out": "it cannot be encoded: ZeroDivisionError"})


def test_a_long_text_is_cut_and_a_long_message_loses_its_data() -> None:
    assert len(body_of({"text": "x" * 1_000_000})["metrics"]["text"]) < 2100
    many = encode(Message(Kind.REPORT, "c", 0.0, {f"name {n}": "x" * 100 for n in range(1000)}, step=1))
    assert len(many) < MAX_BODY
    assert "too long" in json.loads(many)["metrics"]["left_out"]


def test_secrets_do_not_get_into_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")
    data = {
        "api_key": "sk-1234",
        "nested": {"password": ["pass phrase"]},
        "message": "could not log in at https://me:secret@host with hunter2-hunter2",
        "cut": "x" * 1995 + "hunter2-hunter2",
        "train/tokens": 512,
    }
    text = json.dumps(body_of(data, component="run of hunter2-hunter2"))
    for secret in ("sk-1234", "pass phrase", "secret", "hunter2"):
        assert secret not in text
    assert json.loads(text)["metrics"]["train/tokens"] == 512, "a number is no secret, whatever it is called"
