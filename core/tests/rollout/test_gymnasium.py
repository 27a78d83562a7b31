"""A function that returns a Gymnasium environment is a lesson, with discrete or continuous actions."""

from __future__ import annotations

import sys

import gymnasium
import jax
import numpy as np
import pytest

from hookline import PluginManager, hookimpl
from hookline.policies import Continuous, Discrete, PolicyError, to_jax
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.errors import LessonError, RolloutError, UnknownEnvironmentError, UnsupportedSpaceError
from hookline.rollout.text import Limits, TextProblem
from hookline.session import Terminated
from hookline_hookspecs import EvaluationRequest


class Corridor(gymnasium.Env):
    """Five cells: go right to the end for a reward of 1."""

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return self.cell, {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action else -1))
        done = self.cell == 4
        return self.cell, float(done), done, False, {}


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1")


def config(environment, **fields) -> RolloutWorkerConfig:
    lesson = Lesson("lesson", environment, max_episode_steps=fields.pop("max_episode_steps", None))
    return RolloutWorkerConfig(
        CurriculumConfig([lesson], eval_frequency=None, micro_eval_frequency=None),
        num_environments=fields.pop("num_environments", 2),
        steps_per_rollout=fields.pop("steps_per_rollout", 12),
        **fields,
    )


def test_an_environment_with_continuous_actions() -> None:
    with RolloutWorker(config(pendulum)) as worker:
        assert worker.policy.actions == Continuous(1, (-2.0,), (2.0,))
        rollout = worker.rollout()
        assert rollout.arrays["actions"].shape == (12, 2, 1)
        assert rollout.arrays["obs"].shape == (12, 2, 3)
        assert np.isfinite(rollout.arrays["logprobs"]).all()
        assert worker.evaluate(n_examples=2)["eval/lesson/episodes"] == 2


def test_an_environment_with_discrete_actions() -> None:
    with RolloutWorker(config(cartpole, steps_per_rollout=40)) as worker:
        assert worker.policy.actions == Discrete(2)
        rollout = worker.rollout()
        assert rollout.episodes
        assert all(episode.reward == episode.metadata["length"] for episode in rollout.episodes)


def test_a_factory_whose_observations_are_numbers() -> None:
    with RolloutWorker(config(Corridor, max_episode_steps=6)) as worker:
        arrays = worker.rollout().arrays
        assert arrays["obs"].shape == (12, 2, 5)
        assert (arrays["obs"].sum(axis=-1) == 1).all()
        assert arrays["truncated"].any()


def test_a_cut_is_bootstrapped_and_an_end_is_not() -> None:
    subject = config(Corridor, max_episode_steps=6, steps_per_rollout=40)
    with RolloutWorker(subject) as worker:
        weights = worker.policy.initial_weights(5)
        worker.update_weights(weights, 1)
        arrays = worker.rollout().arrays
    values_of_cells = np.asarray(worker.policy.jax_forward(to_jax(weights), np.eye(5, dtype=np.float32))[1])
    cells = arrays["obs"].argmax(-1)
    next_cells = np.maximum(0, cells + np.where(arrays["actions"] == 1, 1, -1))
    expected = np.where(arrays["terminated"], 0.0, values_of_cells[next_cells])
    np.testing.assert_allclose(arrays["next_values"], expected, atol=1e-5)
    assert (arrays["truncated"] & ~arrays["terminated"]).any()
    assert arrays["terminated"].any()


def test_one_seed_gives_one_rollout() -> None:
    one, other = (RolloutWorker(config(pendulum)) for _ in range(2))
    for _ in range(2):
        np.testing.assert_array_equal(one.rollout().arrays["obs"], other.rollout().arrays["obs"])


def test_an_evaluation_plays_exactly_as_many_episodes_as_asked_for() -> None:
    with RolloutWorker(config(Corridor, max_episode_steps=6, num_environments=2)) as worker:
        scores = worker.evaluate(n_examples=5, greedy=False)
    assert scores["eval/lesson/episodes"] == 5


def test_an_environment_that_raises_in_the_middle_is_an_error_that_says_where() -> None:
    class Fragile(Corridor):
        def step(self, action):
            if self.cell == 2:
                raise ZeroDivisionError("the floor gave way")
            return super().step(action)

    with RolloutWorker(config(Fragile, steps_per_rollout=100)) as worker:
        message = (
            r"lesson 'lesson': environment 'Fragile' \(index \d\), episode 0, step \d+: "
            "raised ZeroDivisionError: the floor"
        )
        with pytest.raises(LessonError, match=message) as caught:
            worker.rollout()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("moment", ["reset", "step"])
def test_an_environment_that_exits_is_an_error_and_no_silent_end(moment: str) -> None:
    class Exits(Corridor):
        pass

    def leave(self, *args, **kwargs):
        sys.exit()

    setattr(Exits, moment, leave)
    with RolloutWorker(config(Exits)) as worker, pytest.raises(LessonError) as caught:
        worker.rollout()
    where = "reset" if moment == "reset" else "step 0"
    assert f"lesson 'lesson': environment 'Exits' (index 0), episode 0, {where}: raised SystemExit" in str(caught.value)


def test_an_environment_that_cannot_be_drawn_or_closed_is_an_error_that_says_where() -> None:
    class Undrawn(Corridor):
        render_mode = "rgb_array"

        def render(self):
            raise RuntimeError("no display")

        def close(self):
            raise OSError("already gone")

    worker = RolloutWorker(config(Undrawn, num_environments=1))
    request = EvaluationRequest(n_examples=1, replays=1)
    with pytest.raises(LessonError) as caught:
        worker.play(request, jax.random.key(0))
    assert "environment 'Undrawn' (index 0), when it was closed: raised OSError: already gone" in str(caught.value)
    assert "(index 0), episode 0, step 0, render: raised RuntimeError: no display" in str(
        caught.value.__context__.__context__
    )
    with pytest.raises(LessonError, match="when it was closed: raised OSError"):
        worker.close()


def test_a_request_to_stop_the_process_is_not_taken_for_a_failure_of_the_environment() -> None:
    class Interrupted(Corridor):
        def step(self, action):
            raise stop

    for stop in (KeyboardInterrupt(), Terminated()):
        with RolloutWorker(config(Interrupted)) as worker, pytest.raises(type(stop)):
            worker.rollout()


class Plane(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    start = np.zeros(2)
    outcome = (np.zeros(2), 0.0, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.start, {}

    def step(self, action):
        return self.outcome


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        *(
            ({"outcome": (np.zeros(2), reward, False, False, {})}, f"step 0: the reward is {shown}; a reward must be a")
            for reward, shown in [
                (float("nan"), "nan"),
                (float("inf"), "inf"),
                (1e300, "1e+300"),
                (None, "None"),
                ("1", "'1'"),
                ([1, [2]], "[1, [2]]"),
                (np.ones(1), "array([1.])"),
            ]
        ),
        *(
            (
                {"outcome": (obs, 0.0, False, False, {})},
                f"step 0: the observation {shown}; it must be finite numbers of",
            )
            for obs, shown in [
                (None, "is None"),
                ("ab", "is 'ab'"),
                (["1", "2"], "is ['1', '2']"),
                ([[1.0], [2.0, 3.0]], "is [[1.0], [2.0, 3.0]]"),
                (np.zeros(3), "has shape (3,)"),
                ([0.0, np.nan], "is [0.0, nan]"),
                ([0.0, -np.inf], "is [0.0, -inf]"),
                ([0.0, 1e300], "is [0.0, 1e+300]"),
            ]
        ),
        ({"start": [np.nan, 0.0]}, "reset: the observation is [nan, 0.0]; it must be finite numbers of shape (2,)"),
        ({"outcome": (np.zeros(2), 0.0, False)}, "step 0: raised ValueError: not enough values to unpack"),
    ],
)
def test_what_is_no_outcome_is_an_error_that_says_where(fault: dict, message: str) -> None:
    odd = type("Odd", (Plane,), fault)
    with RolloutWorker(config(odd)) as worker:
        for make in (worker.rollout, lambda: worker.evaluate(n_examples=1)):
            with pytest.raises(LessonError) as caught:
                make()
            assert f"lesson 'lesson': environment 'Odd' (index 0), episode 0, {message}" in str(caught.value)


@pytest.mark.parametrize("obs", [5, -1, 1.5, None, "2"])
def test_an_observation_outside_of_a_discrete_space_is_an_error_that_says_where(obs: object) -> None:
    class Odd(Corridor):
        def step(self, action):
            return obs, 0.0, False, False, {}

    with RolloutWorker(config(Odd)) as worker, pytest.raises(LessonError) as caught:
        worker.rollout()
    assert f"(index 0), episode 0, step 0: the observation is {obs!r}; it must be an integer from 0 to 4" in str(
        caught.value
    )


def test_an_action_space_that_is_not_supported_is_an_error_that_says_what_is() -> None:
    class Many(Corridor):
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    with pytest.raises(UnsupportedSpaceError) as caught:
        RolloutWorker(config(Many))
    assert "environment 'Many' has the action space MultiDiscrete([2 3])" in str(caught.value)
    assert "Discrete and one-dimensional Box are supported" in str(caught.value)


def test_an_observation_space_that_is_not_supported_is_an_error_that_says_what_is() -> None:
    class Odd(Corridor):
        observation_space = gymnasium.spaces.Text(5)

    with pytest.raises(UnsupportedSpaceError, match=r"has the observation space Text.*Box and Discrete are supported"):
        RolloutWorker(config(Odd))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CartPol-v1", r" \(did you mean 'CartPole-v1'\?\)"),
        ("Pendulum-v1", r"; known are CartPole-v1\. Environments of Gymnasium are gymnasium:ID"),
        ("maze:", "; known are CartPole-v1"),
        ("gymnasium:Pendulum-v1", ": names that begin with 'gymnasium:' are those of a plugin that is not active. pip "
         "install hookline-environments. The installed plugins are active in `hookline train` and hookline.train"),
        ("verifiers:gsm8k", ": names that begin with 'verifiers:' are .* pip install hookline-environments"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_an_error_that_says_what_to_do(name: str, hint: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=f"^there is no environment '{name}'{hint}"):
        RolloutWorker(config(name))


class Mazes:
    """A plugin with an environment, and a family of them."""

    @hookimpl
    def register_environments(self):
        def maze(name, *, size=3, depth=1):
            if name == "broken":
                raise ZeroDivisionError("no way out")
            return lambda: gymnasium.wrappers.TimeLimit(Corridor(), size)

        return {"corridor": Corridor, "maze:": maze}


def test_plugins_have_environments_by_name_and_families_of_them_with_options() -> None:
    plugins = PluginManager()
    plugins.register(Mazes())

    def worker(name, **options):
        lesson = Lesson("lesson", name, options=options)
        curriculum = CurriculumConfig([lesson], eval_frequency=None, micro_eval_frequency=None)
        return RolloutWorker(RolloutWorkerConfig(curriculum, num_environments=1, steps_per_rollout=8), plugins)

    assert worker("corridor").rollout().arrays["obs"].shape == (8, 1, 5)
    arrays = worker("maze:round", size=2).rollout().arrays
    assert arrays["truncated"][:, 0].tolist() == [False, True] * 4
    with pytest.raises(RolloutError, match=r"environment 'maze:round' has no option 'sise' \(did you mean 'size'\?\)"):
        worker("maze:round", sise=2)
    with pytest.raises(RolloutError, match="environment 'corridor' has no options, but the lesson gives size"):
        worker("corridor", size=2)
    with pytest.raises(LessonError, match="environment 'maze:broken': raised ZeroDivisionError: no way out"):
        worker("maze:broken")
    with pytest.raises(UnknownEnvironmentError, match="environment 'maze:' needs a name after the colon"):
        worker("maze:")


def test_what_is_no_environment_is_an_error_that_says_what_is() -> None:
    with pytest.raises(
        RolloutError, match="an environment is a name, a JaxEnvironment, a TextEnvironment such as TextTask"
    ):
        RolloutWorker(config(42))


class Greeting:
    """A text environment."""

    limits = Limits()

    def draw(self, rng, *, held_out=False):
        return TextProblem()

    def converse(self, problem):
        yield "Hello"


@pytest.mark.parametrize("environment", [Greeting, lambda: Greeting()], ids=["class", "function"])
def test_what_makes_no_gymnasium_environment_is_an_error_that_says_how_others_are_given(environment) -> None:
    with pytest.raises(LessonError, match="not a Gymnasium environment; other environments are given as objects"):
        RolloutWorker(config(environment))


def test_lessons_that_one_policy_cannot_play_are_an_error_that_names_the_lesson() -> None:
    lessons = [Lesson("cart"), Lesson("swing", pendulum)]
    with pytest.raises(PolicyError, match="lesson 'swing': environment 'pendulum' has observations of size 3"):
        RolloutWorker(RolloutWorkerConfig(CurriculumConfig(lessons), num_environments=1))
