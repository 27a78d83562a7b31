"""What an evaluation keeps of the episodes that it plays."""

from __future__ import annotations

import gymnasium
import jax
import numpy as np
import pytest

from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.environments.cartpole import CartPoleState, step
from hookline.rollout.runners.control import MOST_FRAMES
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer, TextTask
from hookline_hookspecs import EvaluationRequest

KEY = jax.random.key(7)


def worker_for(*lessons: Lesson, **fields: object) -> RolloutWorker:
    config = CurriculumConfig(list(lessons), micro_eval_frequency=None, eval_frequency=None)
    return RolloutWorker(RolloutWorkerConfig(config, num_environments=2, steps_per_rollout=4, **fields))


@pytest.mark.parametrize("greedy", [True, False])
def test_a_recorded_cartpole_went_where_physics_says_and_is_the_one_that_was_scored(greedy: bool) -> None:
    worker = worker_for(Lesson("pole", "CartPole-v1"))
    (episodes,) = worker.play(EvaluationRequest(n_examples=5, greedy=greedy, replays=3), KEY).values()
    (again,) = worker.play(EvaluationRequest(n_examples=5, greedy=greedy), KEY).values()
    assert [episode.reward for episode in again] == [episode.reward for episode in episodes]
    assert [bool(episode.arrays) for episode in episodes] == [True, True, True, False, False]
    for episode in episodes[:3]:
        obs, actions, rewards = (episode.arrays[name] for name in ("obs", "actions", "rewards"))
        assert len(obs) == len(actions) == len(rewards) == episode.metadata["length"] == episode.reward
        for now, action, after in zip(obs[:-1], actions[:-1], obs[1:], strict=True):
            np.testing.assert_allclose(step(KEY, CartPoleState(now, np.int32(0)), action).obs, after, atol=1e-5)
        last = step(KEY, CartPoleState(obs[-1], np.int32(len(obs) - 1)), actions[-1])
        assert bool(last.terminated) != episode.metadata["truncated"]


def test_a_problem_is_answered_as_often_as_asked() -> None:
    tokenizer = CharacterTokenizer("0123456789+=")
    policy = TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=16)
    lesson = Lesson("sums", TextTask(ArithmeticProblems(1), max_new_tokens=4))
    worker = worker_for(lesson, policy=policy, tokenizer=tokenizer)
    request = EvaluationRequest(n_examples=3, greedy=False, samples_per_problem=2, replays=1)
    (episodes,) = worker.play(request, KEY).values()
    assert [episode.group for episode in episodes] == [0, 0, 1, 1, 2, 2]
    assert len({episode.prompt for episode in episodes}) == 3
    first = episodes[0]
    texts = first.metadata["token_texts"]
    assert "".join(texts) == first.prompt + first.response
    assert len(texts) == len(first.logprobs) == len(first.tokens)
    assert "token_texts" not in episodes[1].metadata


class Corridor(gymnasium.Env):
    """Walk for so many steps; draws a picture of one pixel, whose colour is the step."""

    observation_space = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, render_mode: str | None = None) -> None:
        self.length = length
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.step_count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_count += 1
        return np.full(1, self.step_count, np.float32), 0.5, self.step_count == self.length, False, {}

    def render(self):
        return np.full((1, 1, 3), self.step_count, np.uint8)


def test_an_environment_that_draws_is_recorded_with_pictures() -> None:
    worker = worker_for(Lesson("walk", lambda: Corridor(3, "rgb_array")))
    (episodes,) = worker.play(EvaluationRequest(n_examples=3, replays=3), KEY).values()
    for episode in episodes:
        assert episode.reward == 1.5
        assert episode.arrays["obs"].ravel().tolist() == [0.0, 1.0, 2.0]
        assert episode.arrays["rewards"].tolist() == [0.5, 0.5, 0.5]
        assert episode.arrays["frames"][:, 0, 0, 0].tolist() == [0, 1, 2]
        assert episode.metadata["truncated"] is False


def test_an_environment_that_does_not_draw_has_no_pictures_and_only_what_is_asked_for_is_kept() -> None:
    worker = worker_for(Lesson("walk", lambda: Corridor(3), max_episode_steps=2))
    (episodes,) = worker.play(EvaluationRequest(n_examples=5, replays=3), KEY).values()
    assert [sorted(episode.arrays) for episode in episodes] == [["actions", "obs", "rewards"]] * 3 + [[]] * 2
    assert [episode.metadata["truncated"] for episode in episodes] == [True] * 5


def test_a_long_episode_keeps_pictures_evenly() -> None:
    worker = worker_for(Lesson("walk", lambda: Corridor(200, "rgb_array")))
    (episodes,) = worker.play(EvaluationRequest(n_examples=1, replays=1), KEY).values()
    frames = episodes[0].arrays["frames"][:, 0, 0, 0].tolist()
    assert frames == list(range(0, 200, 4))
    assert len(frames) <= MOST_FRAMES
