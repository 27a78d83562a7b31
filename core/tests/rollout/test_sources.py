"""Sources of rollouts: each of ours passes one test, which finds what is wrong with others; and what is special to some."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from hookline import PluginManager
from hookline.errors import ConfigError
from hookline.plugin_manager import open_plugins, read_settings
from hookline.policies import MLPPolicy, TransformerPolicy
from hookline.policies.protocol import Discrete
from hookline.rewards import IntegratedRewardConfig, RewardConfig
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.errors import RolloutError
from hookline.rollout.sources import RolloutSource, SourceRequest, build_source
from hookline.rollout.sources.registry import LocalSource
from hookline.rollout.text import CharacterTokenizer, arithmetic_lessons
from hookline.testing import SourceError, check_source
from hookline.testing import source as check_module
from hookline_hookspecs import Episode, EvaluationRequest, HookContext, Rollout, hookimpl


def named(name: str) -> Callable[[SourceRequest], RolloutSource]:
    return lambda request: build_source(name, request, request.worker.plugins)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local", {"max_staleness": 0}),
        ("ahead", {"max_staleness": 0}),
        ("ahead", {"max_staleness": 4, "options": {"prefetch": 12}}),
        ("processes", {"workers": 2}),
    ],
)
def test_our_sources_keep_the_contract(name: str, options: dict[str, Any]) -> None:
    check_source(named(name), **options)


# -- what is wrong is found -------------------------------------------------------------------------------------------


class Faulty(LocalSource):
    """A good source, to be changed for the worse."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request.worker)
        self.request = request


class TooFew(Faulty):
    def next(self, n: int) -> list[Rollout]:
        return super().next(n)[: n - 1]


class WrongVersion(Faulty):
    def next(self, n: int) -> list[Rollout]:
        rollouts = super().next(n)
        for rollout in rollouts:
            rollout.weights_version -= 1
        return rollouts


class TooStale(Faulty):
    """Publishes every third version only."""

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        if version % 3 == 0:
            super().publish(weights, version)


class Aliased(Faulty):
    """Has the next rollouts made ahead, and reads the learner's weights then."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self.late: list[Any] = []

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        self.late = [*self.late, (weights, version)][-2:]

    def next(self, n: int) -> list[Rollout]:
        self._worker.update_weights(*self.late[0])
        return super().next(n)


class Silent(Faulty):
    def next(self, n: int) -> list[Rollout]:
        return [self._worker.player.play(self._worker.draw_task(self._worker.step)) for _ in range(n)]


class Forgetful(Faulty):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Repeating(Faulty):
    """Restores the counters, and plays again what was played."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "environments": {}})
        draw, made = self._worker.draw_task, self._worker.step
        self._worker.draw_task = lambda number: draw(number - made)  # type: ignore[method-assign]


class OtherKeys(Faulty):
    def evaluate(self, request: Any, weights: Any = None) -> dict[str, list[Episode]]:
        return super().evaluate(replace(request, seed=request.seed + 1), weights)


class OtherWeights(Faulty):
    def evaluate(self, request: Any, weights: Any = None) -> dict[str, list[Episode]]:
        return super().evaluate(request)


class NotANumber(Faulty):
    def numbers(self) -> Mapping[str, float]:
        return {"source/staleness": math.nan}


class Swallowing(Faulty):
    def next(self, n: int) -> list[Rollout]:
        try:
            return super().next(n)
        except RolloutError:
            return []


class Hanging(Faulty):
    def next(self, n: int) -> list[Rollout]:
        check_module.SECONDS = 1.0  # type: ignore[misc]
        return super().next(n)

    def close(self) -> None:
        time.sleep(600)


class Early(Faulty):
    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        threading.Thread(target=time.sleep, args=(5,), name="too-early", daemon=True).start()


CHILDREN: list[subprocess.Popen[bytes]] = []


class Leaking(Faulty):
    """Leaves a thread, a process, an open file or shared memory behind, each time that it is used."""

    kind = "threads"

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        check_module.SECONDS = 300.0  # type: ignore[misc]
        super().publish(weights, version)
        if self.kind == "threads":
            threading.Thread(target=time.sleep, args=(20,), name="left-over", daemon=True).start()
        elif self.kind == "processes":
            CHILDREN.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]))
        elif self.kind == "files":
            os.dup(0)
        else:
            Path("/dev/shm", f"hookline-test-{os.getpid()}-{version}").touch()

    def close(self) -> None:
        check_module.SECONDS = 2.0  # type: ignore[misc]
        super().close()


class Mortal(Faulty):
    """Has processes, whose deaths it does not notice."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self.children: list[Any] = []

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        super().publish(weights, version)
        if not self.children:
            self.children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])]
            CHILDREN.append(self.children[0])

    def pids(self) -> list[int]:
        check_module.SECONDS = 5.0  # type: ignore[misc]
        return [child.pid for child in self.children]

    def close(self) -> None:
        end(self.children)
        super().close()


class Abandoning(Faulty):
    """Has a worker that is no child of its own, as Ray's are none, and does not end it."""

    def __init__(self, request: SourceRequest) -> None:
        super().__init__(request)
        self.workers = [child.pid for child in CHILDREN]

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        check_module.SECONDS = 300.0  # type: ignore[misc]
        super().publish(weights, version)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.workers = []  # none to be killed

    def pids(self) -> list[int]:
        return self.workers

    def close(self) -> None:
        check_module.SECONDS = 2.0  # type: ignore[misc]
        super().close()


def end(children: list[Any]) -> None:
    for child in children:
        child.kill()
        child.wait()
    children.clear()


@pytest.fixture(autouse=True)
def no_children_left() -> Iterator[None]:
    yield
    end(CHILDREN)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (TooFew, r"next\(3\) returned 2 rollouts"),
        (WrongVersion, "a rollout of version -1 was made with other weights"),
        (TooStale, "a rollout has version 0, when 2 was published and max_staleness is 1"),
        (Aliased, r"a rollout of version 0 was made with other weights: copy them in publish\(\)"),
        (Silent, r"next\(3\) emitted on_rollout_start 0 times"),
        (Forgetful, "a state does not restore the worker"),
        (Repeating, "a rollout is made that was returned before it was saved"),
        (OtherKeys, r"evaluate\(\) does not play with the published weights, or not with the rng keys"),
        (OtherWeights, r"evaluate\(\) does not play with the weights that it is given, or not with"),
        (NotANumber, r"numbers\(\) has source/staleness = nan: it must be a finite float"),
        (Swallowing, r"an environment raised an error, and next\(\) did not"),
        (Hanging, r"close\(\) did not return in 1 s"),
        (Early, r"before the first publish\(\) there are already threads: too-early"),
        (Mortal, r"1 worker\(s\) were killed. 5 s later: {'on_rollout_start'"),
    ],
)
def test_a_faulty_source_is_found(faulty: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "SECONDS", 300.0)  # some lower it, when all that takes time is done
    with pytest.raises(SourceError, match=message):
        check_source(faulty)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what a process has open")
@pytest.mark.parametrize("kind", ["threads", "processes", "files", "shared memory"])
def test_what_a_source_leaves_behind_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "SECONDS", 300.0)
    monkeypatch.setattr(Leaking, "kind", kind)
    try:
        with pytest.raises(SourceError, match=rf"after close\(\) there are still {kind}: "):
            check_source(Leaking)
    finally:
        for file in Path("/dev/shm").glob(f"hookline-test-{os.getpid()}-*"):
            file.unlink()


def test_a_worker_that_another_process_started_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "SECONDS", 300.0)
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    CHILDREN.append(worker)
    with pytest.raises(SourceError, match=rf"after close\(\) there are still processes: {worker.pid}"):
        check_source(Abandoning)


# -- names and options ------------------------------------------------------------------------------------------------


def cartpole(plugins: PluginManager | None = None, **fields: Any) -> RolloutWorker:
    lesson = fields.pop("lesson", None) or Lesson("cartpole")
    curriculum = CurriculumConfig([lesson], micro_eval_frequency=None, eval_frequency=None)
    config = RolloutWorkerConfig(
        curriculum, MLPPolicy(4, Discrete(2), (8,)), num_environments=2, steps_per_rollout=4, **fields
    )
    return RolloutWorker(config, plugins)


def test_a_plugin_adds_a_source_by_name(hookline_manager: PluginManager) -> None:
    class Offering:
        @hookimpl
        def register_sources(self) -> Mapping[str, Any]:
            return {"mine": Faulty, "no-function": 3}

    hookline_manager.register(Offering(), "offering")
    request = SourceRequest(cartpole(hookline_manager))
    assert isinstance(build_source("mine", request, hookline_manager), Faulty)
    with pytest.raises(
        RolloutError, match=r"plugin 'offering': the source 'no-function' must be a function of a Sourc"
    ):
        build_source("no-function", request, hookline_manager)
    with pytest.raises(
        RolloutError,
        match=r"there is no source 'proceses' \(did you mean 'processes'\?\); known are local, ahead, processes, mine",
    ):
        build_source("proceses", request, hookline_manager)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("local", {"options": {"prefetch": 1}}, r"rollout.source_options.prefetch: unknown key 'prefetch'"),
        ("ahead", {"options": {"prefech": 1}}, r"unknown key 'prefech' \(did you mean 'prefetch'\?\)"),
        ("ahead", {"options": {"deadline_seconds": 1}}, "unknown key 'deadline_seconds'"),
        ("processes", {"options": {"prefetch": -1, "deadline_seconds": 0}}, r"(?s)prefetch: .*deadline_seconds: "),
        (
            "local",
            {"workers": 2},
            "rollout.workers is 2, but the source 'local' makes rollouts in the trainer's thread",
        ),
        ("ahead", {"workers": 2}, "rollout.workers is 2, but the source 'ahead' has one thread in each rank"),
    ],
)
def test_options_that_a_source_does_not_have_are_errors(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, RolloutError), match=message):
        named(name)(SourceRequest(cartpole(), **fields))


# -- what is played ahead ---------------------------------------------------------------------------------------------


def weights_of(worker: RolloutWorker) -> dict[str, np.ndarray]:
    weights: dict[str, np.ndarray] = worker.policy.initial_weights(0)
    return weights


def test_rollouts_that_are_too_stale_are_dropped_and_counted() -> None:
    worker = cartpole()
    source = named("ahead")(SourceRequest(worker, max_staleness=2))
    try:
        source.publish(weights_of(worker), 0)
        source.next(2)
        while len(source._driver.ready) < 2:  # type: ignore[attr-defined]
            source._driver.handle_events()  # type: ignore[attr-defined]
        for version in (1, 2, 3):
            source.publish(weights_of(worker), version)
        assert [rollout.weights_version for rollout in source.next(2)] == [3, 3]
        numbers = source.numbers()
        assert numbers["source/dropped_rollouts"] == 2
        assert numbers["source/staleness"] == 0
        assert 0 <= numbers["source/worker_idle_share"] <= 1
        assert 0 <= numbers["source/trainer_idle_share"] <= 1
    finally:
        source.close()


def test_a_source_that_was_closed_starts_again_and_plays_what_was_left() -> None:
    worker, other = cartpole(), cartpole()
    source, alone = named("ahead")(SourceRequest(worker)), named("local")(SourceRequest(other))
    for own in (source, alone):
        own.publish(weights_of(worker), 0)
    first = source.next(2)
    source.close()
    assert source.state_dict()["unplayed"] == [[2, "cartpole"], [3, "cartpole"]]
    source.publish(weights_of(worker), 0)
    second = source.next(2)
    source.close()
    expected = alone.next(4)
    assert (first[1].arrays["obs"] == expected[1].arrays["obs"]).all(), "as in step, as long as it is not interrupted"
    assert worker.step == 4
    # The environments are new ones. With the key of rollout 2, they begin as they would have at the run's start.
    fresh = cartpole()
    begun = fresh.player.play(fresh.draw_task(2))
    assert (second[0].arrays["obs"] == begun.arrays["obs"]).all()


def test_an_evaluation_in_the_trainers_thread_disturbs_nothing_and_has_the_latest_weights() -> None:
    taken = []
    for evaluates in (False, True):
        worker = cartpole()
        source = named("ahead")(SourceRequest(worker))
        weights = weights_of(worker)
        source.publish(weights, 0)
        rollouts = []
        for version in range(1, 5):
            rollouts += source.next(1)
            if evaluates:
                worker.evaluate(n_examples=4)
                assert worker.player.version == version - 1
            source.publish(weights, version)
        source.close()
        taken.append([rollout.arrays["obs"] for rollout in rollouts])
    assert all((one == other).all() for one, other in zip(*taken, strict=True))


def test_an_error_of_a_lesson_in_an_evaluation_on_the_workers_is_raised() -> None:
    worker = cartpole(lesson=Lesson("cartpole", check_module.Broken))
    source = named("ahead")(SourceRequest(worker, max_staleness=0))
    try:
        source.publish(weights_of(worker), 0)
        with pytest.raises(RolloutError, match="lesson 'cartpole'.* the floor is wet"):
            source.evaluate(EvaluationRequest(lessons=("cartpole",)))
    finally:
        source.close()


def test_what_is_left_of_an_evaluation_that_failed_is_no_result_of_the_next() -> None:
    lessons = [Lesson("broken", check_module.Broken), *(Lesson(name) for name in ("left", "one", "other"))]
    curriculum = CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None)
    worker = RolloutWorker(RolloutWorkerConfig(curriculum, MLPPolicy(4, Discrete(2), (8,)), num_environments=2))
    source = named("ahead")(SourceRequest(worker, max_staleness=0))
    try:
        source.publish(weights_of(worker), 0)
        with pytest.raises(RolloutError, match="the floor is wet"):
            source.evaluate(EvaluationRequest(lessons=("broken", "left"), n_examples=4))
        # The worker plays the second lesson by now.
        assert set(source.evaluate(EvaluationRequest(lessons=("one", "other"), n_examples=4))) == {"one", "other"}
    finally:
        source.close()


# -- what happens in workers ------------------------------------------------------------------------------------------

TOKENIZER = CharacterTokenizer("0123456789+=")


def text_worker(plugins: PluginManager) -> RolloutWorker:
    config = RolloutWorkerConfig(
        CurriculumConfig(
            arithmetic_lessons("addition-1", max_new_tokens=3), eval_frequency=None, micro_eval_frequency=None
        ),
        policy=TransformerPolicy(TOKENIZER.size, width=16, layers=1, heads=2, context=16),
        num_environments=2,
        sampling=SamplingConfig(samples_per_prompt=2),
        tokenizer=TOKENIZER,
    )
    return RolloutWorker(config, plugins)


REWARDS = IntegratedRewardConfig(
    RewardConfig(length_weight=0, keyword_weight=0, perplexity_weight=0, accuracy_weight=0),
    strict_filtering=True,
    min_reward_threshold=0.0,
    target_acceptance_rate=0.5,
)

PLUGIN = """
import os
from hookline_hookspecs import VerificationReport, VerificationResult

class Plugin:
    def __init__(self):
        self.seen = self.versions = 0
        self.turns = {}

    @hookimpl
    def on_turn_end(self, context, episode, turn):
        assert turn is episode.turns[-1]
        name = f"mine/turns/{context.lesson_id}/{turn.role}/{context.metadata['worker_index']}"
        self.turns[name] = self.turns.get(name, 0) + 1

    @hookimpl
    def on_weights_updated(self, context):
        self.versions += 1

    @hookimpl
    def verify_episodes(self, batch):
        self.seen += len(batch)
        return {"even": [VerificationReport(score=float(i % 2), result=VerificationResult.PASS) for i in range(len(batch))]}

    @hookimpl
    def collect_metrics(self):
        counts = {"mine/seen": float(self.seen), "mine/versions": float(self.versions)}
        return {**counts, **self.turns, "mine/process": float(os.getpid())}

    @hookimpl(scope="driver")
    def on_worker_start(self):
        raise AssertionError("only in the trainer")
"""


@pytest.mark.parametrize("name", ["ahead", "processes"])
def test_rewards_and_plugins_run_where_rollouts_are_made_and_their_numbers_come_back(site: Any, name: str) -> None:
    pytest.importorskip("ahocorasick_rs")
    site.install("mine", PLUGIN)
    settings = read_settings(site.folder, environ={"HOOKLINE_ALLOW": "mine"})
    with open_plugins(settings=settings) as plugins:
        worker = text_worker(plugins)
        source = named(name)(SourceRequest(worker, REWARDS))
        try:
            weights = worker.policy.initial_weights(0)
            for version in range(2):
                source.publish(weights, version)
                (rollout,) = source.next(1)
        finally:
            source.close()
        state = source.state_dict()
    accepted = [episode.metadata["accepted"] for episode in rollout.episodes]
    assert accepted == [False, True, False, True]
    assert np.isnan(rollout.arrays["rewards"]).tolist() == [not own for own in accepted]
    assert rollout.stats["acceptance_rate"] == 0.5
    assert rollout.episodes[1].metadata["verification_details"]["even"]["score"] == 1.0
    latest = worker.tracker.latest
    assert latest["worker/0/mine/seen"] >= 8
    assert "mine/seen" not in latest, "the plugin has numbers of its own in the trainer"
    assert latest["worker/0/rewards/acceptance_rate"] == latest["rewards/acceptance_rate"] == 0.5
    assert (latest["worker/0/mine/process"] == os.getpid()) == (name == "ahead")
    # Each response is a turn of its own, and the lesson is the task's.
    assert latest["worker/0/mine/turns/addition-1/assistant/0"] == latest["worker/0/mine/seen"]
    assert set(state["player"]) == {"min_reward", "verification"}
    # Each number is sent when it has changed.
    told = [entry.metrics for entry in worker.tracker.entries if "worker/0/mine/seen" in entry.metrics]
    assert len(told) == 2
    assert ["worker/0/mine/process" in own for own in told] == [True, False]


class Verifier:
    @hookimpl
    def verify_episodes(self, batch: Any) -> dict[str, Any]:
        return {}


class Guard:
    """Ends conversations, so a run without it would be another one."""

    @hookimpl
    def on_turn_end(self, episode: Any) -> None:
        episode.metadata["stop_reason"] = "enough"


@pytest.mark.parametrize(("plugin", "event"), [(Verifier, "verify_episodes"), (Guard, "on_turn_end")])
def test_a_plugin_that_workers_cannot_find_is_an_error(
    hookline_manager: PluginManager, plugin: type, event: str
) -> None:
    worker = text_worker(hookline_manager)
    source = named("processes")(SourceRequest(worker, REWARDS))
    hookline_manager.register(plugin(), "by-hand")
    with pytest.raises(
        RolloutError,
        match=f"plugin 'by-hand' implements {event}, but it was registered by hand, and rollout workers find",
    ):
        source.publish(worker.policy.initial_weights(0), 0)


def make_slow() -> Any:
    """A CartPole that hangs once, if a file says so. Made inside of a function, it is pickled by value."""

    class Slow(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            marker = Path(os.environ["HANG_MARKER"])
            if marker.exists():
                marker.unlink()
                time.sleep(600)
            return self.env.step(action)

    return lambda: Slow(gymnasium.make("CartPole-v1"))


def test_a_worker_that_hangs_is_replaced_and_its_rollout_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hookline_manager: PluginManager
) -> None:
    class Listener:
        def __init__(self) -> None:
            self.events: list[Any] = []

        @hookimpl
        def on_worker_lost(self, context: HookContext, worker_index: int, reason: str) -> None:
            self.events.append((context.step, worker_index, reason))

        @hookimpl
        def on_worker_restarted(self, worker_index: int) -> None:
            self.events.append(worker_index)

    monkeypatch.setenv("HANG_MARKER", str(tmp_path / "marker"))
    (tmp_path / "marker").touch()
    listener = Listener()
    hookline_manager.register(listener)
    worker = cartpole(hookline_manager, lesson=Lesson("cartpole", make_slow()))
    source = named("processes")(SourceRequest(worker, max_staleness=0, options={"deadline_seconds": 20}))
    try:
        source.publish(weights_of(worker), 0)
        (rollout,) = source.next(1)
    finally:
        source.close()
    assert rollout.weights_version == 0
    assert listener.events == [(0, 0, "no answer in 20 s"), 0]
    assert source.numbers()["source/lost_workers"] == 1
