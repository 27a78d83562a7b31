"""When a request is sent again, and when it is not."""

from __future__ import annotations

import email.utils
import random
import threading
import time

import pytest

from hookline.http.requests import Backoff, RequestError, read_retry_after, with_retries

AT_ONCE = Backoff(0.0, 0.0)


class Failing:
    """Raises so many errors, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls: list[float] = []

    def __call__(self) -> str:
        self.calls.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        return "answered"


def passing(retry_after: float | None = None) -> RequestError:
    return RequestError("busy", is_transient=True, retry_after=retry_after)


def test_a_failure_that_may_pass_is_tried_again_and_another_is_not() -> None:
    call = Failing(passing(), passing())
    assert with_retries(call, AT_ONCE, attempts=3) == "answered"
    call = Failing(RequestError("no such thing"))
    with pytest.raises(RequestError, match="no such thing"):
        with_retries(call, AT_ONCE, attempts=3)
    assert len(call.calls) == 1


def test_the_last_failure_is_raised_when_all_attempts_are_used_up() -> None:
    call = Failing(passing(), passing(), RequestError("the last", is_transient=True), passing())
    with pytest.raises(RequestError, match="the last"):
        with_retries(call, AT_ONCE, attempts=3)


def test_a_pause_that_would_outlast_the_time_is_not_begun() -> None:
    call = Failing(passing(retry_after=3000.0))
    with pytest.raises(RequestError, match="busy"):
        with_retries(call, AT_ONCE, seconds=60.0)


def test_a_retry_after_beyond_all_patience_is_raised_at_once() -> None:
    call = Failing(passing(retry_after=11.0))
    with pytest.raises(RequestError, match="busy"):
        with_retries(call, AT_ONCE, attempts=3, patience=10.0)


def test_a_retry_after_is_waited_for() -> None:
    call = Failing(passing(retry_after=0.3))
    with_retries(call, AT_ONCE, attempts=2)
    assert call.calls[1] - call.calls[0] >= 0.3


def test_a_pause_ends_when_stopped_and_no_attempt_follows() -> None:
    stopped = threading.Event()
    call = Failing(passing(retry_after=3000.0))
    threading.Timer(0.05, stopped.set).start()
    with pytest.raises(RequestError, match="stopped before there was a response"):
        with_retries(call, AT_ONCE, stopped=stopped)
    assert len(call.calls) == 1


def test_retry_after_is_read_in_both_forms_and_within_reason() -> None:
    assert read_retry_after("7") == 7.0
    assert read_retry_after("99999999") == 3600.0
    in_a_minute = read_retry_after(email.utils.formatdate(time.time() + 60, usegmt=True))
    assert in_a_minute is not None
    assert 0.0 < in_a_minute <= 60.0
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 -0000") == 0.0
    assert read_retry_after("soon") is None
    assert read_retry_after(None) is None


def test_waits_are_drawn_from_nought_to_a_bound_that_doubles() -> None:
    backoff = Backoff(first=0.5, longest=60.0)
    for failures, bound in [(1, 0.5), (2, 1.0), (3, 2.0), (8, 60.0), (1000, 60.0)]:
        waits = [backoff.seconds(failures) for _ in range(400)]
        assert 0 <= min(waits) < bound / 4
        assert bound * 3 / 4 < max(waits) <= bound


def test_waits_leave_the_random_numbers_of_the_run_alone() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    with_retries(Failing(passing(), passing()), Backoff(0.001, 0.001), attempts=3)
    assert random.random() == expected
