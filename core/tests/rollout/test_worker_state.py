"""A worker's state can be saved and restored exactly, and its weights come with a version."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hookline.policies import WeightsError
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.errors import CurriculumError, RolloutError
from hookline.rollout.runners.jax_scan import scan_rollout
from hookline.rollout.text import arithmetic_lessons
from hookline_hookspecs import HookContext, hookimpl


def cartpole_config(**fields) -> RolloutWorkerConfig:
    return RolloutWorkerConfig(CurriculumConfig(micro_eval_frequency=2, eval_frequency=4, eval_n_examples=8), **fields)


def arithmetic_config() -> RolloutWorkerConfig:
    curriculum = CurriculumConfig(arithmetic_lessons("addition-1", "addition-2"), eval_frequency=None)
    curriculum.micro_eval_frequency = None
    curriculum.lessons[1].dependencies = {}
    return RolloutWorkerConfig(curriculum)


@pytest.mark.parametrize("config", [cartpole_config, arithmetic_config], ids=["cartpole", "arithmetic"])
def test_a_restored_worker_goes_on_bit_for_bit(config) -> None:
    uninterrupted = RolloutWorker(config())
    uninterrupted.run(steps=3)
    saved = json.loads(json.dumps(uninterrupted.state_dict()))
    expected = [uninterrupted.rollout() for _ in range(3)]

    resumed = RolloutWorker(config())
    resumed.load_state_dict(saved)
    assert resumed.step == 3
    for one, other in zip(expected, [resumed.rollout() for _ in range(3)], strict=True):
        assert one.lesson_id == other.lesson_id
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array, other.arrays[name])
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_a_restored_worker_is_not_due_again_for_what_was_done(hookline_manager) -> None:
    class Listener:
        def __init__(self) -> None:
            self.steps: list[int] = []

        @hookimpl(every=2)
        def on_rollout_end(self, context: HookContext) -> None:
            self.steps.append(context.step)

    worker = RolloutWorker(cartpole_config())
    worker.run(steps=4)
    listener = Listener()
    hookline_manager.register(listener)
    resumed = RolloutWorker(cartpole_config(), hookline_manager)
    resumed.load_state_dict(worker.state_dict())
    resumed.run(steps=2)
    assert listener.steps == [6]


def test_a_state_of_other_lessons_or_of_another_size_is_an_error() -> None:
    worker = RolloutWorker(cartpole_config())
    worker.run(steps=1)
    other_lesson = RolloutWorker(RolloutWorkerConfig(CurriculumConfig([Lesson("cart")])))
    with pytest.raises(CurriculumError, match=r"there is no lesson 'cartpole' \(did you mean 'cart'\?\)"):
        other_lesson.load_state_dict(worker.state_dict())
    other_size = RolloutWorker(cartpole_config(num_environments=4))
    with pytest.raises(RolloutError, match="lesson 'cartpole': the saved state is not of 4 environments 'CartPole-v1'"):
        other_size.load_state_dict(worker.state_dict())


def test_weights_come_from_torch_and_every_rollout_carries_their_version(hookline_manager, hookline_events) -> None:
    worker = RolloutWorker(cartpole_config(), hookline_manager)
    module = worker.policy.torch_module()
    with torch.no_grad():
        module.actor[2].bias += torch.tensor([30.0, -30.0])
    worker.update_weights(dict(module.named_parameters()), version=7)
    rollout = worker.rollout()
    assert rollout.weights_version == 7
    assert (rollout.arrays["actions"] == 0).all()
    assert [event.arguments["version"] for event in hookline_events.of("on_weights_updated")] == [7]


def test_weights_that_do_not_fit_change_nothing() -> None:
    worker = RolloutWorker(cartpole_config())
    weights = worker.policy.initial_weights()
    weights["actor.0.weight"] = weights["actor.0.weight"].T
    del weights["critic.0.bias"]
    with pytest.raises(WeightsError) as caught:
        worker.update_weights(weights, version=1)
    assert "actor.0.weight has shape (4, 64), the policy needs (64, 4)" in str(caught.value)
    assert "critic.0.bias is missing" in str(caught.value)
    assert worker.weights_version == 0


def test_new_weights_and_a_restored_state_compile_nothing_anew() -> None:
    config = cartpole_config(num_environments=2, steps_per_rollout=3)
    before = scan_rollout._cache_size()
    worker = RolloutWorker(config)
    worker.rollout()
    worker.rollout()
    worker.update_weights(dict(worker.policy.torch_module().named_parameters()), version=1)
    worker.rollout()
    resumed = RolloutWorker(config)
    resumed.load_state_dict(worker.state_dict())
    resumed.rollout()
    assert scan_rollout._cache_size() == before + 1
