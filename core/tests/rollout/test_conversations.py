"""Text environments with turns: what is said, which tokens are whose, limits, failures, and plugins that steer."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from hookline import PluginManager, hookimpl
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.engines import Generated
from hookline.rollout.errors import CurriculumError, LessonError
from hookline.rollout.text import CharacterTokenizer, LimitReached, Limits, TextProblem, TextTask
from hookline_hookspecs import Episode, EvaluationRequest, Turn

TOKENIZER = CharacterTokenizer("0123456789+=?!<>")
POLICY = TransformerPolicy(TOKENIZER.size, width=16, layers=1, heads=2, context=64)
END = TOKENIZER.end[0]
KEY = jax.random.key(0)


class Script:
    """An engine whose responses are those of a function of the conversation's text."""

    def __init__(self, respond: Callable[[str], str], context: int = 64) -> None:
        self._respond = respond
        self.context = context
        self.vocabulary = TOKENIZER.size
        self.version: int | None = 0
        self.calls: list[tuple[list[list[int]], int]] = []

    def update_weights(self, weights: Any, version: int | None) -> None:
        self.version = version

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, key: Any, *, max_new_tokens: int, stop: Any
    ) -> Generated:
        samples = sampling.samples_per_prompt
        self.calls.append(([list(prompt) for prompt in prompts], samples))
        responses = [
            [*TOKENIZER.encode(self._respond(text_of(prompt))), END] for prompt in prompts for _ in range(samples)
        ]
        tokens = np.zeros((len(responses), max_new_tokens), np.int32)
        valid = np.zeros(tokens.shape, bool)
        for row, response in enumerate(responses):
            kept = response[:max_new_tokens]
            tokens[row, : len(kept)], valid[row, : len(kept)] = kept, True
        logprobs = -tokens.astype(np.float32)
        return Generated(tokens, logprobs, valid, -logprobs if sampling.top_k else None)


def text_of(tokens: Sequence[int]) -> str:
    """All of the text, with `/` where a turn of the policy ends."""
    return "".join("/" if token == END else TOKENIZER.alphabet[token - 2] for token in tokens)


class Asks:
    """Asks for a number until it is `answer`; tells more (`>`) or less (`<`)."""

    limits = Limits(max_turns=4, max_new_tokens=4)

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        return TextProblem(answer="7" if held_out else str(rng.integers(1, 9)), metadata={"level": 1})

    def converse(self, problem: TextProblem) -> Any:
        response = yield "?"
        while response != problem.answer:
            response = yield ">" if response < problem.answer else "<"
        return 1.0


def worker_for(
    environment: Any, engine: Script | None = None, *plugins: Any, limits: dict[str, Any] | None = None, **fields: Any
) -> RolloutWorker:
    manager = PluginManager()
    for plugin in plugins:
        manager.register(plugin)
    if engine is not None:
        manager.register(SimpleNamespace(register_engines=hookimpl(lambda: {"script": lambda request: engine})))
    config = RolloutWorkerConfig(
        CurriculumConfig(
            [Lesson("talk", environment, limits=limits or {})], eval_frequency=None, micro_eval_frequency=None
        ),
        policy=POLICY,
        tokenizer=TOKENIZER,
        engine="auto" if engine is None else "script",
        **{"num_environments": 3, **fields},
    )
    return RolloutWorker(config, manager)


def count_up(text: str) -> str:
    """The number after the one that was said last, beginning with 5; as long as it is told to go up."""
    if text == "?":
        return "5"
    said, told = text.removesuffix("/")[-3], text[-1]
    return str(int(said) + (1 if told == ">" else -1))


# -- what is said, and whose tokens are whose -------------------------------------------------------------------------


def test_a_conversation_goes_on_until_the_environment_ends_it_with_a_reward() -> None:
    engine = Script(count_up)
    rollout = worker_for(Asks(), engine).rollout()
    for episode in rollout.episodes:
        said = [turn.text for turn in episode.turns if turn.role == "assistant"]
        answer = int(episode.reference)
        assert [int(own) for own in said] == list(range(5, answer + 1)) or list(range(5, answer - 1, -1))
        assert (episode.response, episode.reward) == (episode.reference, 1.0)
        assert [turn.role for turn in episode.turns] == ["user", "assistant"] * len(said)
        assert episode.metadata == {"level": 1, "length": 2 * len(said), "truncated": False}
    assert rollout.stats["mean_turns"] == np.mean([len(episode.turns) / 2 for episode in rollout.episodes])
    assert rollout.stats["failed"] == 0


def test_the_policy_reads_its_own_tokens_and_those_between_and_only_its_own_are_trained() -> None:
    engine = Script(count_up)
    rollout = worker_for(Asks(), engine, sampling=SamplingConfig(2, temperature=0.5, top_k=3)).rollout()
    read = [prompt for prompts, _ in engine.calls for prompt in prompts]
    for episode in rollout.episodes:
        tokens = episode.tokens.tolist()
        for turn in episode.turns:
            own = tokens[turn.start : turn.end]
            assert TOKENIZER.decode(own) == turn.text
            is_sampled = turn.role == "assistant"
            assert episode.mask[turn.start : turn.end].tolist() == [is_sampled] * len(own)
            if is_sampled:
                assert tokens[: turn.start] in read, "the whole conversation so far, token by token"
                assert own[-1] == END
        np.testing.assert_array_equal(episode.logprobs, np.where(episode.mask, -episode.tokens, 0))
        np.testing.assert_array_equal(episode.log_mass, -episode.logprobs)
        assert [turn.start for turn in episode.turns[1:]] == [turn.end for turn in episode.turns[:-1]]
        assert (episode.temperature, episode.weights_version) == (0.5, 0)


def test_a_response_that_is_cut_off_is_ended_by_a_token_that_is_not_trained() -> None:
    worker = worker_for(Asks(), Script(lambda text: "12345"), limits={"max_turns": 2, "max_new_tokens": 3})
    (episode, *_) = worker.rollout().episodes
    assert text_of(episode.tokens) in ("?123/<123", "?123/>123")
    assert episode.mask.tolist() == [False, True, True, True, False, False, True, True, True]
    assert episode.metadata["truncated"]


def test_messages_that_come_together_are_encoded_together_in_their_roles() -> None:
    class Roles(Asks):
        def converse(self, problem: TextProblem) -> Any:
            yield [Turn("system", "1+"), Turn("user", "2=")]
            yield [Turn("tool", "3"), Turn("user", "?")]
            return 0.5

    (episode, *_) = worker_for(Roles(), Script(lambda text: "4")).rollout().episodes
    assert text_of(episode.tokens) == "1+2=4/3?4/"
    assert [(turn.role, turn.text) for turn in episode.turns] == [
        ("system", "1+"), ("user", "2="), ("assistant", "4"), ("tool", "3"), ("user", "?"), ("assistant", "4"),
    ]  # fmt: skip
    assert [(turn.start, turn.end) for turn in episode.turns] == [(0, 0), (0, 4), (4, 6), (6, 6), (6, 8), (8, 10)]
    assert (episode.prompt, episode.response, episode.reward) == ("1+2=", "4", 0.5)


def test_conversations_that_begin_alike_are_read_once_and_later_ones_each_for_itself() -> None:
    engine = Script(count_up)
    worker_for(Asks(), engine, sampling=SamplingConfig(4)).rollout()
    (first, samples), *later = engine.calls
    assert (len(first), samples) == (3, 4)
    assert later
    assert all(samples == 1 for _, samples in later)


def test_conversations_on_one_problem_may_begin_in_different_ways() -> None:
    class Shuffled(Asks):
        count = iter("0123456789")

        def converse(self, problem: TextProblem) -> Any:
            yield next(self.count)
            return 0.0

    engine = Script(lambda text: text)
    episodes = worker_for(Shuffled(), engine, num_environments=1, sampling=SamplingConfig(3)).rollout().episodes
    assert [episode.response for episode in episodes] == [episode.prompt for episode in episodes]
    assert [samples for _, samples in engine.calls] == [1]


def test_an_evaluation_plays_held_out_problems_and_records_the_tokens_of_its_replays() -> None:
    worker = worker_for(Asks(), Script(count_up))
    request = EvaluationRequest(n_examples=2, samples_per_problem=2, replays=1, greedy=False, held_out=True)
    (episodes,) = worker.play(request, KEY).values()
    assert [(episode.group, episode.reference) for episode in episodes] == [(0, "7"), (0, "7"), (1, "7"), (1, "7")]
    assert episodes[0].metadata["token_texts"] == ["?", "5", "", ">", "6", "", ">", "7", ""]
    assert "token_texts" not in episodes[1].metadata


def test_weights_that_change_in_between_are_known_token_by_token() -> None:
    engine = Script(count_up)
    respond = engine._respond

    def new_weights(text: str) -> str:
        engine.version = len(engine.calls)
        return respond(text)

    engine._respond = new_weights
    worker = worker_for(Asks(), engine, num_environments=1)
    worker.engine  # noqa: B018 - built now, with the version of the worker
    (episode,) = worker.play(EvaluationRequest(n_examples=1, held_out=True), KEY)["talk"]
    assert episode.weights_version.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]


# -- limits -----------------------------------------------------------------------------------------------------------


class Tries(Asks):
    """Never satisfied. Pays a tenth for each response if a limit ends it."""

    def __init__(self, *, pays: bool = True) -> None:
        self.pays = pays

    def converse(self, problem: TextProblem) -> Any:
        for number in range(1, 100):
            try:
                yield "?"
            except LimitReached as limit:
                if not self.pays:
                    raise
                self.seen = str(limit)
                return (number - 1) / 10
        return None


def test_a_limit_on_turns_ends_a_conversation_with_the_reward_for_what_there_is() -> None:
    environment = Tries()
    (episode, *_) = worker_for(environment, Script(lambda text: "1")).rollout().episodes
    assert [turn.role for turn in episode.turns] == ["user", "assistant"] * 4 + ["user"]
    assert (episode.turns[-1].start, episode.turns[-1].end) == (len(episode.tokens),) * 2, "the policy never read it"
    assert (episode.reward, environment.seen, episode.metadata["stop_reason"]) == (0.4, "max_turns", "max_turns")


def test_without_a_reward_of_its_own_a_conversation_that_a_limit_ends_is_worth_nothing() -> None:
    rollout = worker_for(Tries(pays=False), Script(lambda text: "1")).rollout()
    assert rollout.arrays["rewards"].tolist() == [0.0] * 3
    assert rollout.stats["failed"] == 0


@pytest.mark.parametrize(("context", "limits"), [(14, {}), (64, {"max_tokens": 14})])
def test_a_conversation_ends_where_there_is_no_room_for_another_response(context: int, limits: dict[str, Any]) -> None:
    worker = worker_for(Tries(), Script(lambda text: "1", context), limits=limits)
    (episode, *_) = worker.rollout().episodes
    assert text_of(episode.tokens) == "?1/?1/?1/?1/", "9 tokens and a message leave room for 4 more, 12 do not"
    assert (episode.reward, episode.metadata["stop_reason"]) == (0.4, "max_turns")
    worker = worker_for(Tries(), Script(lambda text: "1", context), limits={**limits, "max_turns": 9})
    (episode, *_) = worker.rollout().episodes
    assert (episode.reward, episode.metadata["stop_reason"]) == (0.4, "max_tokens")


def test_first_messages_without_room_for_a_response_are_an_error_if_all_are_so() -> None:
    worker = worker_for(TextTask([("1" * 13, "1")]), Script(str, 64), limits={"max_tokens": 16, "max_new_tokens": 4})
    problem = "lesson 'talk': .* began with a prompt of 13 tokens, and a response has up to 4, but .* room for 16"
    with pytest.raises(LessonError, match=problem):
        worker.rollout()


def test_a_message_beyond_the_last_turn_need_not_be_one_that_the_tokenizer_knows() -> None:
    class Ends(Asks):
        def converse(self, problem: TextProblem) -> Any:
            yield "?"
            yield "over"

    rollout = worker_for(Ends(), Script(lambda text: "1"), limits={"max_turns": 1}).rollout()
    assert [episode.turns[-1].text for episode in rollout.episodes] == ["over"] * 3
    assert [episode.metadata["stop_reason"] for episode in rollout.episodes] == ["max_turns"] * 3
    assert rollout.stats["failed"] == 0


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_turns": 0}, "max_turns must be at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"seconds": 0}, "seconds must be greater than 0"),
        ({"max_turn": 3}, r"lesson 'talk': there is no limit 'max_turn' \(did you mean 'max_turns'\?\)"),
    ],
)
def test_limits_that_make_no_sense_are_an_error(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(CurriculumError, match=message):
        worker_for(Asks(), limits=limits)


def test_limits_of_an_environment_that_are_a_dictionary_are_an_error() -> None:
    environment = Asks()
    environment.limits = {"max_turns": 3}  # as in a process with a Python of its own
    with pytest.raises(CurriculumError, match=r"lesson 'talk': the limits of its environment are {'max_turns': 3}; "):
        worker_for(environment)


# -- failures ---------------------------------------------------------------------------------------------------------


class Faulty(Asks):
    """One of the problems goes wrong, in the middle of its conversations."""

    def __init__(self, fault: Callable[[], Iterator[Any]]) -> None:
        self.fault = fault
        self.drawn = 0

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        self.drawn += 1
        return TextProblem(metadata={"is_faulty": self.drawn % 3 == 2})

    def converse(self, problem: TextProblem) -> Any:
        if (yield "?") == "1" and problem.metadata["is_faulty"]:
            return (yield from self.fault())
        return 1.0


def raises(error: BaseException) -> Callable[[], Iterator[Any]]:
    def fault() -> Iterator[Any]:
        raise error
        yield

    return fault


def yields(*values: Any) -> Callable[[], Iterator[Any]]:
    def fault() -> Iterator[Any]:
        yield from values

    return fault


def returns(value: Any) -> Callable[[], Iterator[Any]]:
    def fault() -> Iterator[Any]:
        return value
        yield

    return fault


def goes_on() -> Iterator[Any]:
    for _ in range(9):
        try:
            yield "?"
        except LimitReached:
            yield "!"


WANTED = "; it must be a text, or turns with the roles system, user, tool"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (raises(ZeroDivisionError("the abacus fell")), "raised ZeroDivisionError: the abacus fell"),
        (raises(SystemExit(0)), "raised SystemExit: 0"),
        (raises(LimitReached("not yet")), "raised LimitReached: not yet"),
        (yields(None), f"yielded None{WANTED}"),
        (yields([]), f"yielded []{WANTED}"),
        (yields({"role": "user"}), f"yielded {{'role': 'user'}}{WANTED}"),
        (yields([Turn("assistant", "1")]), f"yielded a turn ('assistant', '1'){WANTED}"),
        (yields([Turn("user", 5)]), f"yielded a turn ('user', 5){WANTED}"),
        (returns("1.0"), "returned no valid reward: the reward is '1.0'; a reward must be a finite number"),
        (returns(float("nan")), "returned no valid reward: the reward is nan; a reward must be a finite number"),
        (
            returns(np.ones(2)),
            "returned no valid reward: the reward is array([1., 1.]); a reward must be a finite number",
        ),
        (goes_on, "went on after LimitReached('max_turns')"),
        (
            yields("more"),
            "said what cannot be encoded: TokenizerError: the tokenizer does not know the character 'm' in 'more': "
            "set the worker config's tokenizer to a CharacterTokenizer whose alphabet has it",
        ),
    ],
    ids=lambda own: own[:40] if isinstance(own, str) else "",
)
def test_an_environment_that_fails_ends_its_episode_with_a_reason_and_nothing_else(
    fault: Callable[[], Iterator[Any]], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_for(Faulty(fault), Script(lambda text: "1"), sampling=SamplingConfig(2))
    rollout = worker.rollout()
    assert [episode.metadata.get("failure") for episode in rollout.episodes] == [None, None, reason, reason, None, None]
    assert [episode.reward for episode in rollout.episodes] == [1.0, 1.0, None, None, 1.0, 1.0]
    np.testing.assert_array_equal(rollout.arrays["rewards"], [1, 1, np.nan, np.nan, 1, 1])
    assert (rollout.stats["failed"], rollout.stats["mean_reward"]) == (2.0, 1.0)
    assert f"lesson 'talk': the environment of 2 of 6 episodes failed, the first because it {reason}" in caplog.text
    worker.rollout()
    assert len(caplog.records) == 1, "the others are counted"


@pytest.mark.parametrize("begins", [True, False])
def test_an_environment_that_hangs_ends_its_episode_and_holds_up_no_other(begins: bool) -> None:
    never = threading.Event()

    def hang() -> Iterator[Any]:
        never.wait()
        yield

    class Hangs(Faulty):
        def converse(self, problem: TextProblem) -> Any:
            if begins and problem.metadata["is_faulty"]:
                never.wait()
            return (yield from super().converse(problem))

    worker = worker_for(Hangs(hang), Script(lambda text: "1"), limits={"seconds": 0.3, "patience": 0.05})
    try:
        rollout = worker.rollout()
    finally:
        never.set()
    reasons = [episode.metadata.get("failure") for episode in rollout.episodes]
    assert reasons == [None, "gave no answer within 0.3 s", None]
    assert [turn.text for turn in rollout.episodes[1].turns] == ([] if begins else ["?", "1"])


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        (FileNotFoundError("problems.txt"), "raised FileNotFoundError: problems.txt when it drew a problem"),
        (SystemExit(2), "raised SystemExit: 2 when it drew a problem"),
        ("1+1=", "drew '1+1=', not a TextProblem"),
        (
            TextProblem(answer=np.ones(2)),  # type: ignore[arg-type]
            "drew a problem with the answer array([1., 1.]), which must be a text",
        ),
        (
            TextProblem(metadata=[1]),  # type: ignore[arg-type]
            "drew a problem with the metadata [1], which must be a dictionary",
        ),
        (threading.Event(), "gave no answer within 0.3 s when it drew a problem"),
    ],
    ids=["raises", "exits", "draws nonsense", "answer", "metadata", "hangs"],
)
def test_a_problem_that_cannot_be_drawn_fails_the_episodes_of_its_group(drawn: Any, reason: str) -> None:
    class Empty(Asks):
        numbers = iter(range(100))

        def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> Any:
            if next(self.numbers) != 2:
                return TextProblem(answer="5")
            if isinstance(drawn, BaseException):
                raise drawn
            if isinstance(drawn, threading.Event):
                drawn.wait()
            return drawn

    worker = worker_for(Empty(), Script(count_up), limits={"seconds": 0.3}, sampling=SamplingConfig(2))
    try:
        rollout = worker.rollout()
    finally:
        if isinstance(drawn, threading.Event):
            drawn.set()
    assert [episode.metadata.get("failure") for episode in rollout.episodes] == [None] * 4 + [reason] * 2
    assert [len(episode.tokens) for episode in rollout.episodes] == [3] * 4 + [0] * 2
    assert [episode.group for episode in rollout.episodes] == [0, 0, 1, 1, 2, 2]


def test_the_time_limit_is_that_of_each_problem() -> None:
    class Slow(Asks):
        def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
            time.sleep(0.3)
            return super().draw(rng)

    worker = worker_for(Slow(), Script(count_up), limits={"seconds": 1.0}, num_environments=5)
    assert worker.rollout().stats["failed"] == 0


def test_after_a_draw_that_takes_too_long_the_environment_is_asked_for_no_further_problem() -> None:
    goes_on = threading.Event()

    class Stuck(Asks):
        drawn = 0

        def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
            self.drawn += 1
            if self.drawn == 2:
                goes_on.wait()
            return TextProblem(answer="5")

    environment = Stuck()
    worker = worker_for(environment, Script(count_up), limits={"seconds": 0.3}, num_environments=4)
    try:
        rollout = worker.rollout()
    finally:
        goes_on.set()
    reason = "gave no answer within 0.3 s when it drew a problem"
    assert [episode.metadata.get("failure") for episode in rollout.episodes] == [None, reason, reason, reason]
    for thread in threading.enumerate():
        if thread.name == "hookline-environment":
            thread.join(timeout=500)
    assert environment.drawn == 2
    assert worker.rollout().stats["failed"] == 0


def test_what_the_tokenizer_does_not_know_is_an_error_if_no_episode_was_ever_without_it() -> None:
    class Odd(Asks):
        then = "more"

        def converse(self, problem: TextProblem) -> Any:
            yield "?"
            yield self.then
            return 1.0

    problem = "lesson 'talk': the policy can read no episode; .* does not know the character 'm' in 'more'"
    with pytest.raises(LessonError, match=problem):
        worker_for(Odd(), Script(lambda text: "1")).rollout()
    environment = Odd()
    environment.then = ">"
    worker = worker_for(environment, Script(lambda text: "1"))
    assert worker.rollout().stats["failed"] == 0
    environment.then = "more"
    assert worker.rollout().stats["failed"] == 3


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("1" * 70, "began with a prompt of 70 tokens, and a response has up to 4, but a conversation has room for 64"),
        ("", "began with a prompt that has no tokens"),
    ],
)
def test_a_prompt_that_the_policy_cannot_read_ends_its_episode_and_no_other(prompt: str, reason: str) -> None:
    class Varies(Asks):
        prompts = iter(["?", prompt, "?"])

        def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
            return TextProblem(next(self.prompts))

        def converse(self, problem: TextProblem) -> Any:
            yield problem.prompt
            return 1.0

    rollout = worker_for(Varies(), Script(lambda text: "1")).rollout()
    assert [episode.reward for episode in rollout.episodes] == [1.0, None, 1.0]
    assert rollout.episodes[1].metadata["failure"].startswith(reason)


# -- environments that take their time --------------------------------------------------------------------------------


def test_the_others_go_on_while_one_environment_takes_its_time() -> None:
    """The slow one answers only when the others have ended. Were it waited for, it would never answer."""
    ended = threading.Semaphore(0)

    class Slow(Asks):
        drawn = iter(range(100))

        def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
            return TextProblem(metadata={"number": next(self.drawn)})

        def converse(self, problem: TextProblem) -> Any:
            yield "?"
            if problem.metadata["number"] == 1:
                assert ended.acquire(timeout=500)
                assert ended.acquire(timeout=500)
            yield ">"
            yield ">"
            ended.release()
            return 1.0

    engine = Script(lambda text: "1")
    rollout = worker_for(Slow(), engine, limits={"patience": 0.05, "seconds": 120}).rollout()
    assert [episode.reward for episode in rollout.episodes] == [1.0] * 3
    assert [len(prompts) for prompts, _ in engine.calls] == [3, 2, 2, 1, 1]


def test_as_many_environments_answer_at_the_same_time_as_there_are() -> None:
    everyone = threading.Barrier(12)

    class Together(Asks):
        def converse(self, problem: TextProblem) -> Any:
            yield "?"
            everyone.wait(timeout=500)
            return 1.0

    rollout = worker_for(Together(), Script(lambda text: "1"), num_environments=12).rollout()
    assert rollout.stats["mean_reward"] == 1.0


def test_threads_end_with_the_rollout() -> None:
    worker_for(Asks(), Script(count_up)).rollout()
    for thread in threading.enumerate():
        if thread.name == "hookline-environment":
            thread.join(timeout=500)
    assert not [thread for thread in threading.enumerate() if thread.name == "hookline-environment"]


# -- plugins that watch and steer -------------------------------------------------------------------------------------


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[int, str | None, str, str]] = []

    @hookimpl
    def on_turn_end(self, context: Any, episode: Episode, turn: Turn) -> None:
        assert episode.turns[-1] == turn
        assert context.rng is not None
        episode.metadata["words"] = len(episode.turns)
        self.seen.append((context.step, context.lesson_id, turn.role, turn.text))


def test_a_plugin_is_told_of_each_turn_of_a_rollout_and_of_none_of_an_evaluation() -> None:
    watcher = Watcher()
    worker = worker_for(Asks(), Script(count_up), watcher, num_environments=1)
    worker.play(EvaluationRequest(n_examples=1), KEY)
    assert watcher.seen == []
    (episode,) = worker.rollout().episodes
    assert watcher.seen == [(0, "talk", turn.role, turn.text) for turn in episode.turns]
    assert episode.metadata["words"] == len(episode.turns)


@pytest.mark.parametrize("reward", [None, -1.0])
def test_a_plugin_ends_a_conversation_and_the_environment_is_closed(reward: float | None) -> None:
    closed = []

    class Guarded(Asks):
        def converse(self, problem: TextProblem) -> Any:
            try:
                return (yield from super().converse(problem))
            finally:
                closed.append(problem.answer)

    class Guard:
        @hookimpl
        def on_turn_end(self, episode: Episode, turn: Turn) -> None:
            if (turn.role, turn.text) == ("assistant", "6"):
                episode.metadata["stop_reason"] = "6 is not allowed"
                episode.reward = reward

    worker = worker_for(Guarded(), Script(count_up), Guard(), num_environments=8)
    rollout = worker.rollout()
    stopped = [int(episode.reference) > 5 for episode in rollout.episodes]
    assert any(stopped)
    assert not all(stopped)
    for episode, is_stopped in zip(rollout.episodes, stopped, strict=True):
        assert episode.metadata.get("stop_reason") == ("6 is not allowed" if is_stopped else None)
        assert (episode.response == "6") == is_stopped
        assert episode.reward == (reward if is_stopped else 1.0)
        assert episode.mask.sum() == 2 * sum(turn.role == "assistant" for turn in episode.turns)
    assert len(closed) == 8, "the environment's finally has run in all"
    assert rollout.stats["failed"] == 0


def test_a_plugin_ends_a_conversation_before_the_policy_reads_a_message() -> None:
    class Censor:
        @hookimpl
        def on_turn_end(self, episode: Episode, turn: Turn) -> None:
            if turn.text == ">":
                episode.metadata["stop_reason"] = "no hints"

    engine = Script(count_up)
    worker = worker_for(Asks(), engine, Censor(), num_environments=8)
    rollout = worker.rollout()
    assert {text_of(episode.tokens) for episode in rollout.episodes if int(episode.reference) > 5} == {"?5/>"}


# -- with a policy ----------------------------------------------------------------------------------------------------


def test_with_the_jax_engine_a_rollout_is_the_same_when_it_is_made_again() -> None:
    def play() -> list[list[int]]:
        worker = worker_for(Tries(), sampling=SamplingConfig(4, temperature=1.3), limits={"max_turns": 3})
        return [episode.tokens.tolist() for episode in worker.rollout().episodes]

    one, other = play(), play()
    assert one == other
    assert len({tuple(tokens) for tokens in one}) > 1


def test_conversations_unlock_and_graduate_lessons_as_single_responses_do(
    hookline_manager: PluginManager, hookline_events: Any
) -> None:
    engine = Script(count_up)
    hookline_manager.register(SimpleNamespace(register_engines=hookimpl(lambda: {"script": lambda request: engine})))
    lessons = [
        Lesson("first", Asks(), plateau_window=2),
        Lesson("second", Asks(), plateau_window=2, dependencies={"first": 0.5}),
    ]
    curriculum = CurriculumConfig(lessons, eval_frequency=3, eval_n_examples=4, micro_eval_frequency=None)
    config = RolloutWorkerConfig(curriculum, policy=POLICY, tokenizer=TOKENIZER, engine="script", num_environments=3)
    worker = RolloutWorker(config, hookline_manager)
    worker.run(steps=100)
    changes = [dict(event.arguments["changes"]) for event in hookline_events.of("on_curriculum_update")]
    assert changes[0] == {"second": "unlocked"}
    assert {name for change in changes for name, what in change.items() if what == "graduated"} == {"first", "second"}
    assert worker.is_complete


def test_an_environment_is_closed_with_its_worker_and_an_error_says_where() -> None:
    class Closed(Asks):
        def close(self) -> None:
            sys.exit("already gone")

    with pytest.raises(LessonError, match="lesson 'talk', closing its environment: raised SystemExit: already gone"):
        worker_for(Closed(), Script(str)).close()
