"""Schedules against a plain definition of the ticks they hold."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline_hookspecs import At, Cycle, Every, Schedule, Watch

HORIZON = 300

every = st.builds(
    lambda n, start, length: Every(n, start=start, stop=None if length is None else start + length),
    st.integers(1, 40),
    st.integers(-3, 60),
    st.none() | st.integers(1, 100),
)
cycles = st.integers(1, 12).flatmap(
    lambda length: st.builds(Cycle, st.just(length), st.sets(st.integers(0, length - 1), min_size=1))
)
ats = st.builds(At, st.sets(st.integers(0, 120), min_size=1, max_size=5))
schedules = st.recursive(
    every | cycles | ats,
    lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
    max_leaves=4,
)


def holds(schedule: Schedule, tick: int) -> bool:
    """What the schedules mean, by definition."""
    match schedule:
        case Every(n, start, stop):
            return tick % n == 0 and tick > start and (stop is None or tick <= stop)
        case Cycle(length, active):
            return tick % length in active
        case At(ticks):
            return tick in ticks
    either = holds(schedule.one, tick), holds(schedule.other, tick)  # type: ignore[attr-defined]
    return any(either) if type(schedule).__name__ == "Either" else all(either)


@given(schedules, st.integers(-1, 100))
def test_the_next_tick_is_the_first_that_the_definition_holds_for(schedule: Schedule, tick: int) -> None:
    expected = next((t for t in range(tick + 1, HORIZON) if holds(schedule, t)), None)
    found = schedule.next_after(tick)
    assert found == expected if expected is not None else found is None or found >= HORIZON


def test_every_counts_from_zero_and_excludes_its_start() -> None:
    schedule = Every(10, start=20, stop=40)
    assert [schedule.next_after(tick) for tick in (-1, 0, 20, 29, 30, 40)] == [30, 30, 30, 30, 40, None]


def test_the_first_tick_of_every_is_n_and_not_zero() -> None:
    assert Every(5).next_after(-1) == 5


def test_two_schedules_that_never_meet_are_never_due() -> None:
    assert (Cycle(2, [0]) & Cycle(2, [1])).next_after(0) is None
    assert (Every(7) & At([8, 15])).next_after(-1) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Every(0), "Every(n) needs a whole number of at least 1, got 0"),
        (lambda: Every(True), "Every(n) needs a whole number of at least 1, got True"),
        (lambda: Every(2.5), "Every(n) needs a whole number of at least 1, got 2.5"),
        (lambda: Every(5, start=10, stop=10), "Every(5) is never due: stop=10 is not after start=10"),
        (lambda: Cycle(0, [0]), "Cycle(length) needs a whole number of at least 1, got 0"),
        (lambda: Cycle(3, []), "Cycle(3, active=[]) is never due: name at least one position"),
        (lambda: Cycle(3, [1, 3]), "Cycle(3) has positions 0 to 2, got [3]"),
        (lambda: At([]), "At([]) is never due: list at least one tick"),
    ],
)
def test_a_schedule_that_makes_no_sense_says_why(make, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


def test_a_schedule_can_be_read_by_a_person() -> None:
    assert str(Every(10)) == "every 10"
    assert str(Every(10, start=20, stop=40) | At([3])) == "(every 10 after 20 up to 40 or at 3)"
    assert str(Cycle(5, [0, 3]) & Every(2)) == "(0, 3 in cycles of 5 and every 2)"


def test_a_schedule_combines_with_schedules_only() -> None:
    with pytest.raises(TypeError, match="a schedule is a number of ticks, Every, Cycle or At, not 'ten'"):
        Every(2) | "ten"  # type: ignore[operator]


@given(schedules, st.integers(0, 100))
def test_a_schedule_holds_the_ticks_of_its_definition(schedule: Schedule, tick: int) -> None:
    assert (tick in schedule) == holds(schedule, tick)


@given(schedules, st.sets(st.integers(0, HORIZON), min_size=1).map(sorted), st.integers(0, HORIZON))
def test_a_watch_is_due_once_for_all_ticks_that_were_passed(
    schedule: Schedule, looks: list[int], complete: int
) -> None:
    """A new run looks at 0 or later; a resumed one where the other was interrupted, with what is complete seen."""
    watch, resumed = Watch(schedule), Watch(schedule, complete)
    first = [0] if looks[0] == 0 else range(1, looks[0] + 1)
    passed = [first, *(range(a + 1, b + 1) for a, b in pairwise(looks))]
    expected = [any(holds(schedule, tick) for tick in ticks) for ticks in passed]
    assert [watch.is_due(now) for now in looks] == expected
    later = [complete, *(now for now in looks if now > complete)]
    expected = [any(holds(schedule, tick) for tick in range(a + 1, b + 1)) for a, b in pairwise(later)]
    assert [resumed.is_due(now) for now in later[1:]] == expected


def test_a_clock_that_went_back_is_looked_at_anew() -> None:
    watch = Watch(10)
    assert [watch.is_due(now) for now in (98, 100, 40, 45, 51)] == [True, True, True, False, True]


def test_a_watch_without_a_schedule_is_never_due() -> None:
    watch = Watch(None)
    assert not any(watch.is_due(now) for now in (0, 1, 10, 5, 10**9))
