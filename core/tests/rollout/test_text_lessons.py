"""Text lessons: prompts, a reference answer and a checker."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hookline.policies import MLPPolicy, PolicyError, TransformerPolicy
from hookline.policies.protocol import Discrete
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.errors import CurriculumError, LessonError
from hookline.rollout.text import (
    ArithmeticProblems,
    CharacterTokenizer,
    TextProblem,
    TextTask,
    arithmetic_lessons,
    exact_match,
)
from hookline.rollout.text.problems import TokenizerError

TOKENIZER = CharacterTokenizer("0123456789+-*=")
POLICY = TransformerPolicy(TOKENIZER.size, width=32, layers=1, heads=2, context=24)


def worker_for(*lessons: Lesson, **fields) -> RolloutWorker:
    return RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(list(lessons), eval_frequency=None, micro_eval_frequency=None),
            policy=POLICY,
            tokenizer=TOKENIZER,
            num_environments=4,
            **fields,
        )
    )


def sums(**fields) -> Lesson:
    return Lesson("sums", TextTask(ArithmeticProblems(1, "+"), max_new_tokens=4, **fields))


def test_a_rollout_has_texts_tokens_and_rewards_in_groups_by_prompt() -> None:
    worker = worker_for(sums(), sampling=SamplingConfig(samples_per_prompt=3))
    rollout = worker.rollout()
    assert len(rollout.episodes) == 12
    assert [episode.group for episode in rollout.episodes] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    for episode, reward in zip(rollout.episodes, rollout.arrays["rewards"], strict=True):
        a, b = episode.prompt.removesuffix("=").split("+")
        assert episode.reference == str(int(a) + int(b))
        assert episode.reward == reward == exact_match(TextProblem(episode.prompt, episode.reference), episode.response)
    assert len({episode.prompt for episode in rollout.episodes[:3]}) == 1


def test_an_episode_says_of_each_token_whose_it_is_and_whether_it_is_trained() -> None:
    worker = worker_for(
        Lesson("two", TextTask([("1+1=", "2"), ("12+13=", "25")], max_new_tokens=4)),
        sampling=SamplingConfig(samples_per_prompt=2, temperature=0.5, top_p=0.9),
    )
    worker.update_weights(worker.policy.initial_weights(3), version=7)
    for episode in worker.rollout().episodes:
        question, answer = episode.turns
        assert (question.role, answer.role) == ("user", "assistant")
        assert (question.text, answer.text) == (episode.prompt, episode.response)
        for turn in episode.turns:
            assert TOKENIZER.decode(episode.tokens[turn.start : turn.end].tolist()) == turn.text
        assert (question.start, question.end, answer.end) == (0, answer.start, len(episode.tokens))
        assert episode.mask.tolist() == [False] * answer.start + [True] * episode.metadata["length"]
        assert len(episode.logprobs) == len(episode.log_mass) == len(episode.tokens)
        assert (episode.logprobs[~episode.mask] == 0).all()
        assert (episode.temperature, episode.weights_version) == (0.5, 7)


def test_torch_finds_the_logprobs_that_jax_sampled_with() -> None:
    worker = worker_for(sums(), sampling=SamplingConfig(temperature=0.7))
    module = worker.policy.torch_module(worker.policy.initial_weights(worker.config.seed))
    rollout = worker.rollout()
    for episode in rollout.episodes:
        tokens = torch.from_numpy(episode.tokens).long()[None]
        with torch.no_grad():
            logprobs = module.token_logprobs(tokens, temperature=torch.tensor([0.7]))[0]
        np.testing.assert_allclose(episode.logprobs[episode.mask], logprobs[episode.mask[1:]], atol=1e-5)


def test_a_policy_that_knows_the_answers_graduates() -> None:
    """Trained by torch to answer two problems, handed to the worker, evaluated greedily."""
    problems = [("1+1=", "2"), ("2+3=", "5")]
    module = POLICY.torch_module()
    rows = [[*TOKENIZER.encode(prompt + answer), TOKENIZER.end[0]] for prompt, answer in problems]
    tokens = torch.tensor(rows)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(60):
        loss = -module.token_logprobs(tokens)[:, 3:].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    worker = worker_for(Lesson("two", TextTask(problems, max_new_tokens=4), plateau_window=2))
    assert worker.evaluate(n_examples=16)["eval/two/success_rate"] == 0.0
    worker.update_weights(dict(module.named_parameters()), version=1)
    worker.run(steps=3)
    scores = worker.evaluate(n_examples=16, moves_curriculum=True)
    assert scores["eval/two/success_rate"] == 1.0
    assert worker.is_complete


def test_a_checker_is_given_the_problem_with_its_metadata() -> None:
    problem = TextProblem("1+2=", "3", {"also": ["03", "3.0"]})
    seen = []

    def check(problem: TextProblem, response: str) -> float:
        seen.append(problem)
        return float(response in problem.metadata["also"])

    rollout = worker_for(Lesson("lenient", TextTask([problem], check, max_new_tokens=4))).rollout()
    assert seen == [problem] * 4
    assert all(episode.metadata["also"] == ["03", "3.0"] for episode in rollout.episodes), "rewards find it too"


def test_what_a_checker_cannot_judge_is_left_out_rather_than_counted_as_nothing() -> None:
    worker = worker_for(sums(checker=lambda problem, response: None))
    rollout = worker.rollout()
    assert [episode.reward for episode in rollout.episodes] == [None] * 4
    assert np.isnan(rollout.arrays["rewards"]).all()
    assert "mean_reward" not in rollout.stats
    assert worker.curriculum.standings["sums"].success is None
    scores = worker.evaluate(n_examples=4)
    assert scores == {"eval/sums/episodes": 4.0, "eval/sums/not_applicable": 4.0}


def test_a_prompt_that_the_context_has_no_room_for_is_an_error() -> None:
    lesson = Lesson("long", TextTask([("1" * 21, "1")], max_new_tokens=4))
    with pytest.raises(
        LessonError, match=r"lesson 'long': .* a prompt of 21 tokens, and a response has up to 4, .* 24"
    ):
        worker_for(lesson).rollout()


def test_a_character_outside_of_the_alphabet_is_an_error_that_shows_it() -> None:
    with pytest.raises(LessonError, match=r"lesson 'odd': .*does not know the character '\?' in '1\+1\?'"):
        worker_for(Lesson("odd", TextTask([("1+1?", "2")]))).rollout()


def test_a_text_lesson_needs_a_policy_that_generates_text_with_the_tokenizers_vocabulary() -> None:
    config = RolloutWorkerConfig(CurriculumConfig([sums()]), policy=MLPPolicy(4, Discrete(2)))
    with pytest.raises(PolicyError, match=r"a MLPPolicy, cannot generate text: it has no jax_prefill\(\) and jax_dec"):
        RolloutWorker(config).rollout()
    config = RolloutWorkerConfig(CurriculumConfig([sums()]), policy=TransformerPolicy(5))
    with pytest.raises(PolicyError, match="the tokenizer has 98 tokens, the policy 5"):
        RolloutWorker(config).rollout()


def test_text_lessons_and_environments_in_one_worker_are_an_error() -> None:
    with pytest.raises(PolicyError, match="lesson 'sums' is a text lesson, and others are environments"):
        worker_for(sums(), Lesson())


def test_texts_come_back_from_tokens_as_they_went() -> None:
    tokenizer = CharacterTokenizer()
    text = "What is 12 + 34?\nAnswer: 46"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([tokenizer.pad, *tokenizer.encode("ab"), *tokenizer.end, 5]) == "ab"
    with pytest.raises(TokenizerError, match="must not repeat a character"):
        CharacterTokenizer("aa")


def test_arithmetic_grows_in_difficulty_and_each_level_builds_on_the_last() -> None:
    lessons = arithmetic_lessons()
    assert [lesson.dependencies for lesson in lessons[1:]] == [{before.lesson_id: 0.8} for before in lessons[:-1]]
    generator = np.random.default_rng(0)
    for lesson in lessons:
        for _ in range(50):
            problem = lesson.environment.draw(generator)
            assert eval(problem.prompt.removesuffix("=")) == int(problem.answer)
    with pytest.raises(CurriculumError, match=r"no level 'adition-2' of arithmetic \(did you mean 'addition-2'\?\)"):
        arithmetic_lessons("adition-2")
    with pytest.raises(CurriculumError, match="there is no operation '/'; known are"):
        ArithmeticProblems(1, "/")


def test_numbers_may_differ_in_digits_and_come_in_either_order() -> None:
    generator = np.random.default_rng(0)
    draw = ArithmeticProblems((1, 2))
    numbers = [tuple(map(int, draw(generator).prompt.removesuffix("=").split("+"))) for _ in range(200)]
    assert all(min(pair) < 10 for pair in numbers)
    shares = [sum(a >= 10 for a, _ in numbers) / 200, sum(b >= 10 for _, b in numbers) / 200]
    assert all(0.3 < share < 0.6 for share in shares), "nine in ten of the longer ones, half of them first"
    with pytest.raises(CurriculumError, match="at least one digit"):
        ArithmeticProblems((0, 2))
