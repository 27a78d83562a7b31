"""Errors are logged and printed without secrets, even if their own methods raise."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookline_hookspecs.errors import describe_error, error_message
from hookline_hookspecs.logs import LOGGERS, get_logger
from hookline_hookspecs.redaction import REDACTED, remember_secrets


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def test_an_error_is_described_by_its_type_and_message_without_secrets() -> None:
    remember_secrets("abcdefgh", "api_key")
    assert describe_error(ValueError("abcdefgh is refused")) == f"ValueError: {REDACTED} is refused"
    assert describe_error(ValueError()) == "ValueError"
    assert error_message(ValueError("abcdefgh is refused")) == f"{REDACTED} is refused"


def test_an_error_that_cannot_be_shown_is_described_all_the_same() -> None:
    assert describe_error(Unspeakable()) == "Unspeakable (its message cannot be shown)"


def test_a_record_has_no_secret_in_message_arguments_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    remember_secrets("abcdefgh", "api_key")
    logger = get_logger("hookline.test.logs")
    try:
        raise ValueError("abcdefgh")
    except ValueError:
        logger.exception("got %s", ["abcdefgh"])
    (record,) = caplog.records
    shown = logging.Formatter().format(record)
    assert "abcdefgh" not in shown + repr(vars(record))
    assert shown.startswith(f"got ['{REDACTED}']\nTraceback")
    assert shown.endswith(f"ValueError: {REDACTED}")


def test_a_record_without_secrets_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("hookline.test.logs")
    error = ValueError("plain")
    logger.warning("got %s", 5, exc_info=error)
    (record,) = caplog.records
    assert (record.msg, record.args, record.exc_info and record.exc_info[1]) == ("got %s", (5,), error)


def test_an_argument_that_cannot_be_shown_breaks_no_record(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("hookline.test.logs").warning("got %s", Unspeakable(), exc_info=Unspeakable())
    assert caplog.messages == ["got %s (its arguments cannot be shown: RuntimeError)"]


def test_a_logger_that_is_asked_for_twice_looks_once() -> None:
    assert get_logger("hookline.test.logs") is get_logger("hookline.test.logs")
    assert len(get_logger("hookline.test.logs").filters) == 1


def test_every_logger_of_ours_takes_secrets_out_of_its_records() -> None:
    root = Path(__file__).parents[2]
    sources = [
        path for part in ("core", "plugins", "bridges") for path in (root / part).rglob("*.py") if "src" in path.parts
    ]
    used = {name for path in sources for name in re.findall(r'getLogger\("(hookline[^"]*)"\)', path.read_text("utf-8"))}
    assert used <= {f"hookline.{name}" for name in LOGGERS}, "name it in hookline_hookspecs.logs.LOGGERS"
    assert all(logging.getLogger(name).filters for name in used)
    unnamed = [str(path) for path in sources if "getLogger(__name__)" in path.read_text("utf-8")]
    assert unnamed == []


def test_tracebacks_of_a_process_and_its_threads_have_no_secrets() -> None:
    code = """
import threading
from hookline_hookspecs.logs import hide_secrets_in_tracebacks

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError

class Late:
    def __del__(self):
        raise ValueError("hidden-password in del")

def fail():
    raise ValueError("hidden-password in a thread")

hide_secrets_in_tracebacks()
thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
late = Late()
del late
try:
    raise Unspeakable
except Unspeakable:
    raise ValueError("hidden-password in the end")
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"SOME_PASSWORD": "hidden-password"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert result.returncode == 1
    assert "hidden-password" not in result.stderr
    for place in ("a thread", "del", "the end"):
        assert f"ValueError: {REDACTED} in {place}" in result.stderr
    assert "in the thread 'worker'" in result.stderr
    assert "Unspeakable: <exception str() failed>" in result.stderr
