from math import inf, nan

import pytest
from hookline_nan_guard import NanGuard, Options

from hookline.testing import check_plugin


@pytest.fixture
def train(hookline_manager, hookline_state):
    """Reports a loss for each step to a guard with a patience of 2, and returns the guard."""
    guard = NanGuard(Options(patience=2))
    hookline_manager.register(guard, "nan-guard")

    def report(*losses: float) -> NanGuard:
        for step, loss in enumerate(losses, start=1):
            hookline_manager.emit.post_training_step(state=hookline_state(step=step), report_data={"train/loss": loss})
        return guard

    return report


def test_it_is_a_good_plugin():
    check_plugin(NanGuard, patience=5)


def test_it_lets_a_healthy_run_go_on(train):
    assert train(1.0, 0.5, 0.25).in_all == 0


def test_it_forgives_single_bad_steps(train):
    assert train(1.0, nan, 0.5, inf, 0.25).in_all == 2


def test_it_ends_a_run_that_stays_bad(train):
    with pytest.raises(FloatingPointError, match="train/loss not finite for 2 steps in a row, last at step 3"):
        train(1.0, nan, nan)


def test_it_offers_a_metric(train, hookline_manager, hookline_state):
    train(1.0, nan)
    collected = hookline_manager.emit.collect_metrics(state=hookline_state())
    assert collected.items() == [("nan-guard", {"nan_guard/non_finite_steps": 1.0})]


def test_it_remembers_over_a_resume(train, hookline_manager, hookline_state):
    train(1.0, nan)
    saved = dict(hookline_manager.emit.save_plugin_state(state=hookline_state()).items())
    resumed = NanGuard(Options(patience=2))
    hookline_manager.replace("nan-guard", resumed)
    hookline_manager.emit.load_plugin_state(state=hookline_state(), saved=saved)
    assert (resumed.in_a_row, resumed.in_all) == (1, 1)
