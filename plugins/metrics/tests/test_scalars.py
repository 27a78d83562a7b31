import math
from fractions import Fraction
from typing import Any

import pytest

from hookline_metrics.collecting import Merger, as_scalar


class Tensor:
    """What torch, jax, mlx and NumPy agree on."""

    def __init__(self, *elements: float) -> None:
        self.elements = elements

    def item(self) -> float:
        if len(self.elements) != 1:
            raise ValueError("only arrays of one element have an item")
        return self.elements[0]


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3.0), (0.5, 0.5), (True, 1.0), (False, 0.0), (Fraction(1, 4), 0.25), (Tensor(2.5), 2.5)]
)
def test_numbers_are_numbers(value: Any, number: float) -> None:
    assert as_scalar(value) == number


@pytest.mark.parametrize("value", [None, "0.5", [1.0], {}, 1j, Tensor(1.0, 2.0), Tensor(), 10**400])
def test_all_else_is_not_a_number(value: Any) -> None:
    assert as_scalar(value) is None


def test_what_is_not_finite_is_a_number_still() -> None:
    assert as_scalar(math.inf) == math.inf
    assert math.isnan(as_scalar(math.nan) or 0.0)


def test_the_first_source_keeps_a_name_and_the_warning_names_both_once(caplog: pytest.LogCaptureFixture) -> None:
    merger = Merger()
    sources = [("plugin 'a'", {"loss": 1.0, "x": 2.0}), ("plugin 'b'", {"loss": 3.0, "y": 4.0})]
    for _ in range(2):
        assert merger.merge(sources) == {"loss": 1.0, "x": 2.0, "y": 4.0}
    assert [record.getMessage() for record in caplog.records] == [
        "metric 'loss' comes from plugin 'a' and from plugin 'b': the first is recorded"
    ]


def test_a_source_that_gives_no_mapping_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert Merger().merge([("plugin 'a'", [1.0]), ("plugin 'b'", {"y": 4.0})]) == {"y": 4.0}
    assert "plugin 'a' returned a list, not a mapping of names to numbers" in caplog.text
