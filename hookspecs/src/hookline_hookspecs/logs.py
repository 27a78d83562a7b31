"""Removes secrets from log records and printed tracebacks."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Final

from hookline_hookspecs.redaction import redact_text

__all__ = ["LOGGERS", "get_logger", "hide_secrets_in_tracebacks", "print_traceback"]


LOGGERS: Final = (
    "checkpoint",
    "evaluation",
    "hooks",
    "metrics",
    "mlflow",
    "plugins",
    "rewards",
    "rollout",
    "sb3",
    "session",
    "status",
    "tensorboard",
    "trackio",
    "training",
    "transformers",
    "wandb",
)
"""The loggers of Hookline's distributions, below `hookline`. Importing this module redacts their records."""


def get_logger(name: str) -> logging.Logger:
    """`logging.getLogger(name)` with a filter that redacts secrets before any handler sees them.

    A parent's filter does not see the records of its children, so every logger needs its own.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_redact_record)  # does nothing if it is there already
    return logger


def _redact_record(record: logging.LogRecord) -> bool:
    """Redact a record that contains a secret. Others are not changed."""
    try:
        message = record.getMessage()
    except Exception as error:  # an argument whose `str` or `repr` fails
        record.msg, record.args = f"{record.msg} (its arguments cannot be shown: {type(error).__name__})", None
        message = record.msg
    safe = redact_text(message)
    if safe != message:
        record.msg, record.args = safe, None
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        safe = redact_text(text)
        if safe != text:
            record.exc_info, record.exc_text = None, safe
    return True


def print_traceback(error: BaseException | None) -> None:
    """Print the traceback of an error as the interpreter does, without secrets."""
    if error is not None and sys.stderr is not None:  # a process without a console has no stderr
        sys.stderr.write(redact_text("".join(traceback.format_exception(error))))
        sys.stderr.flush()


def hide_secrets_in_tracebacks() -> None:
    """Replace the interpreter's exception hooks by ones that redact secrets.

    For processes that belong to Hookline: the command line and the workers that it starts.
    """
    sys.excepthook = lambda _kind, error, _traceback: print_traceback(error)
    sys.unraisablehook = lambda about: print_traceback(about.exc_value)
    threading.excepthook = _print_error_of_thread


def _print_error_of_thread(about: threading.ExceptHookArgs) -> None:
    if about.exc_type is not SystemExit:
        if about.thread is not None and about.exc_value is not None:
            about.exc_value.add_note(f"in the thread {about.thread.name!r}")
        print_traceback(about.exc_value)


# `getLogger` always returns the same object for a name, so all users of these loggers get the filter.
for _name in LOGGERS:
    get_logger(
        f"hookline.{_name}"
    )  # `getLogger` always returns the same object for a name, so all users of it get the filter
