"""The worker samples lessons, makes rollouts, and announces every moment of it."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hookline import PluginManager
from hookline.plugin_manager.registry import DuplicateNameError
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.environments import cartpole
from hookline.rollout.environments.cartpole import CARTPOLE, CartPoleState
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition
from hookline.rollout.errors import LessonError, RolloutError
from hookline.testing import EventRecorder
from hookline_hookspecs import HookContext, Rollout, hookimpl


def quiet(**fields) -> RolloutWorkerConfig:
    """A worker without evaluations."""
    curriculum = fields.pop("curriculum", None) or CurriculumConfig()
    curriculum.eval_frequency = curriculum.micro_eval_frequency = None
    return RolloutWorkerConfig(curriculum, **fields)


def same_arrays(one: Rollout, other: Rollout) -> bool:
    return one.arrays.keys() == other.arrays.keys() and all(
        np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays
    )


def test_a_config_without_arguments_is_a_working_cartpole_worker() -> None:
    worker = RolloutWorker(RolloutWorkerConfig())
    first, second = worker.rollout(), worker.rollout()
    assert worker.step == 2
    assert first.lesson_id == "cartpole"
    assert first.arrays["obs"].shape == (128, 8, 4)
    assert {array.shape[:2] for array in first.arrays.values()} == {(128, 8)}
    assert sum(e.metadata["length"] for e in first.episodes) <= 128 * 8
    assert all(episode.reward == episode.metadata["length"] for episode in first.episodes)
    # The second goes on where the first ended: what followed its last step is what the second values first.
    running = ~(first.arrays["terminated"][-1] | first.arrays["truncated"][-1])
    np.testing.assert_allclose(first.arrays["next_values"][-1][running], second.arrays["values"][0][running], atol=1e-6)


def test_it_announces_its_start_each_rollout_and_its_stop(hookline_manager, hookline_events) -> None:
    worker = RolloutWorker(quiet(), hookline_manager)
    hookline_events.clear()
    worker.run(steps=2)
    assert hookline_events.names() == [
        "on_worker_start",
        "on_rollout_start",
        "on_rollout_end",
        "on_rollout_start",
        "on_rollout_end",
        "on_worker_stop",
    ]
    starts = [event.arguments["context"] for event in hookline_events.of("on_rollout_start")]
    ends = [event.arguments["context"] for event in hookline_events.of("on_rollout_end")]
    assert [context.step for context in starts] == [0, 1]
    assert [context.step for context in ends] == [1, 2]
    assert ends[0].lesson_id == "cartpole"
    assert (
        ends[0].metadata["reward"] == hookline_events.of("on_rollout_end")[0].arguments["rollout"].stats["mean_reward"]
    )
    assert ends[0].metadata["performance"] == 0.0
    assert ends[0].metadata["weights_version"] == 0


def test_it_announces_its_stop_when_an_environment_raises(hookline_manager, hookline_events) -> None:
    class Broken:
        def __init__(self) -> None:
            import gymnasium

            self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
            self.action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None):
            raise OSError("no display")

        def close(self) -> None: ...

    config = quiet(curriculum=CurriculumConfig([Lesson("walk", Broken)]))
    worker = RolloutWorker(config, hookline_manager)
    with pytest.raises(LessonError, match=r"lesson 'walk': environment 'Broken' \(index 0\), .*: raised OSError"):
        worker.run(steps=1)
    assert hookline_events.names()[-1] == "on_worker_stop"


@pytest.mark.parametrize(
    ("fault", "what", "step"),
    [
        (lambda after, here: after._replace(reward=jnp.where(here, jnp.nan, 1.0)), "the reward is nan", 3),
        (lambda after, here: after._replace(obs=jnp.where(here, jnp.inf, after.obs)), r"the observation is \[inf", 4),
    ],
)
def test_what_is_not_finite_in_a_scan_is_an_error_that_says_where(fault, what: str, step: int) -> None:
    def faulty_step(key: jax.Array, state: CartPoleState, action: jax.Array) -> Transition:
        return fault(cartpole.step(key, state, action), state.time == 3)

    odd = JaxEnvironment("Odd", 4, CARTPOLE.actions, CARTPOLE.reset, faulty_step)
    worker = RolloutWorker(quiet(curriculum=CurriculumConfig([Lesson("walk", odd)]), num_environments=2))
    where = rf"lesson 'walk': environment 'Odd' \(index 0\), step {step} of the rollout, step {step} of the episode"
    with pytest.raises(LessonError, match=f"{where}: {what}"):
        worker.rollout()
    where = f"lesson 'walk': environment 'Odd', episode 0 of an evaluation, step {step}"
    with pytest.raises(LessonError, match=f"{where}: the reward or the observation is not finite"):
        worker.evaluate(n_examples=2)


def exits(*_):
    sys.exit(0)


@pytest.mark.parametrize(
    ("reset", "fault", "message"),
    [
        (exits, lambda after: after, "reset: raised SystemExit: 0"),
        (None, exits, "step: raised SystemExit: 0"),
        (None, lambda after: after._replace(reward=None), "step: 'reward' is None; it must be numbers of shape ()"),
        (None, lambda after: after._replace(reward="1"), "step: raised TypeError: "),
        (None, lambda after: after._replace(reward=jnp.ones(2)), "step: 'reward' is ShapeDtypeStruct(shape=(2,)"),
        (None, lambda after: after._replace(obs=jnp.ones(3)), "step: 'observation' is ShapeDtypeStruct(shape=(3,)"),
        (None, lambda after: after._replace(terminated=1.0), "step: 'terminated' is ShapeDtypeStruct(shape=()"),
        (lambda key: None, lambda after: after, "reset: raised TypeError: cannot unpack"),
    ],
)
def test_functions_that_no_scan_could_use_are_an_error_that_names_the_lesson(reset, fault, message: str) -> None:
    def step(*arguments: jax.Array) -> Transition:
        return fault(cartpole.step(*arguments))

    odd = JaxEnvironment("Odd", 4, CARTPOLE.actions, reset or CARTPOLE.reset, step)
    with pytest.raises(LessonError) as caught:
        RolloutWorker(quiet(curriculum=CurriculumConfig([Lesson("walk", odd)])))
    assert f"lesson 'walk': environment 'Odd', {message}" in str(caught.value)


def test_a_state_that_changes_its_shape_is_an_error_that_names_the_lesson() -> None:
    def step(key: jax.Array, state: CartPoleState, action: jax.Array) -> Transition:
        return cartpole.step(key, state, action)._replace(state=state.physics)

    odd = JaxEnvironment("Odd", 4, CARTPOLE.actions, CARTPOLE.reset, step)
    worker = RolloutWorker(quiet(curriculum=CurriculumConfig([Lesson("walk", odd)])))
    with pytest.raises(LessonError, match="lesson 'walk': environment 'Odd', in a rollout: raised "):
        worker.rollout()


def test_a_plugin_hears_of_rollouts_by_its_own_schedule(hookline_manager) -> None:
    class Listener:
        def __init__(self) -> None:
            self.steps: list[int] = []

        @hookimpl(every=2)
        def on_rollout_end(self, context: HookContext) -> None:
            self.steps.append(context.step)

    listener = Listener()
    hookline_manager.register(listener)
    RolloutWorker(quiet(), hookline_manager).run(steps=5)
    assert listener.steps == [2, 4]


def test_one_seed_gives_the_same_rollouts_and_another_seed_others() -> None:
    rollouts = []
    for seed in (3, 3, 4):
        worker = RolloutWorker(quiet(seed=seed))
        rollouts.append([worker.rollout() for _ in range(3)])
    assert all(map(same_arrays, rollouts[0], rollouts[1]))
    assert not same_arrays(rollouts[0][0], rollouts[2][0])


def test_workers_with_one_seed_and_different_indices_differ() -> None:
    first, second = (RolloutWorker(quiet(worker_index=index)).rollout() for index in range(2))
    assert not same_arrays(first, second)


def test_what_a_plugin_draws_changes_no_rollout() -> None:
    class Gambler:
        @hookimpl
        def on_rollout_start(self, context: HookContext) -> None:
            jax.random.normal(context.rng, (100,))

    with PluginManager() as manager:
        manager.register(Gambler())
        watched, alone = RolloutWorker(quiet(), manager), RolloutWorker(quiet())
        assert all(same_arrays(watched.rollout(), alone.rollout()) for _ in range(2))


def test_environments_that_plugins_offer_are_found_by_name(hookline_manager) -> None:
    import gymnasium

    class Offering:
        @hookimpl
        def register_environments(self):
            return {"my-cartpole": lambda: gymnasium.make("CartPole-v1")}

    hookline_manager.register(Offering())
    config = quiet(
        curriculum=CurriculumConfig([Lesson("mine", "my-cartpole")]), num_environments=2, steps_per_rollout=4
    )
    with RolloutWorker(config, hookline_manager) as worker:
        assert worker.rollout().arrays["obs"].shape == (4, 2, 4)


def test_an_environment_that_two_plugins_offer_is_an_error_that_names_both(hookline_manager) -> None:
    class One:
        @hookimpl
        def register_environments(self):
            return {"maze": object}

    class Two(One): ...

    hookline_manager.register(One())
    hookline_manager.register(Two())
    with pytest.raises(DuplicateNameError, match="plugin 'Two' and plugin 'One' both register an environment 'maze'"):
        RolloutWorker(quiet(), hookline_manager)


def test_the_tracker_gives_what_was_logged_since_it_was_last_drained() -> None:
    worker = RolloutWorker(quiet())
    worker.run(steps=2)
    assert [entry.step for entry in worker.tracker.drain()] == [1, 2]
    worker.tracker.log({"note": 1}, step=2)
    assert [dict(entry.metrics) for entry in worker.tracker.drain()] == [{"note": 1}]
    assert worker.tracker.latest["rollout/cartpole/steps"] == 1024


def test_compiled_programs_are_kept_where_the_config_says(tmp_path: Path) -> None:
    before = jax.config.jax_compilation_cache_dir
    try:
        # A shape of its own: what is compiled already is not written again.
        RolloutWorker(quiet(num_environments=3, steps_per_rollout=5, compilation_cache=tmp_path)).run(steps=1)
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_numbers_that_make_no_sense_are_all_named() -> None:
    config = quiet(num_environments=0)
    config.sampling.temperature = 0.0
    config.sampling.top_k = 0
    with pytest.raises(RolloutError) as caught:
        RolloutWorker(config)
    for field in ("num_environments must be at least 1", "temperature", "top_k"):
        assert field in str(caught.value)


def test_the_recorder_sees_the_same_events_as_a_plugin(hookline_manager) -> None:
    with EventRecorder(hookline_manager) as recorder:
        RolloutWorker(quiet(), hookline_manager).run(steps=1)
    assert recorder.names().count("on_rollout_end") == 1
