"""`check_source`: the test that every source of rollouts should pass."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.rng import key_of_evaluation
from hookline.rollout.sources import RolloutSource, SourceFactory, SourceRequest
from hookline_hookspecs import EvaluationRequest, Rollout, hookimpl

__all__ = ["SourceError", "check_source"]

POLICY: Final = MLPPolicy(4, Discrete(2), hidden=(8,))
LESSON: Final = Lesson("cartpole", "CartPole-v1")
ROLLOUTS: Final = 3
"""How many rollouts are asked for at a time."""
SECONDS: Final = 300.0
"""How long a call may take, and the replacement of a worker."""

Result = TypeVar("Result")


class SourceError(AssertionError):
    """A source does not do what `RolloutSource` says."""


def check_source(
    factory: SourceFactory, *, workers: int = 1, max_staleness: int = 1, options: Mapping[str, Any] | None = None
) -> None:
    """Build sources of CartPole, publish weights that give their version away, and check what comes back.

    It takes as long as five starts of the source. Threads, processes and files that the first one leaves behind are
    taken for those of a library. All later ones must be gone when a source is closed.

    :param factory: the function that `register_sources` returns for the source's name.
    """

    def start(lesson: Lesson = LESSON, workers: int = workers) -> _Run:
        return _Run(factory, SourceRequest(_worker(lesson), None, workers, max_staleness, options or {}))

    _raises_the_error_of_a_lesson(start(Lesson("broken", Broken), workers=1))
    before = _Resources()
    first, second = start(), start()
    _plays_with_what_was_published(first)
    _plays_evaluations(first)
    _goes_on_from_a_state(first, second)
    _survives_deaths(second)
    gc.collect()
    own = first.pids | second.pids
    _until(lambda: not before.leaks(own), lambda: f"after close() there are still {before.leaks(own)}")


# -- the checks -------------------------------------------------------------------------------------------------------


def _raises_the_error_of_a_lesson(run: _Run) -> None:
    try:
        run.publish()
        _within(lambda: run.source.next(1), "next(1) of a lesson that fails")
    except SourceError:
        raise
    except Exception as error:
        if "the floor is wet" not in str(error):
            raise SourceError(f"an environment raised 'the floor is wet', and next() raised {error!r}") from error
    else:
        raise SourceError("an environment raised an error, and next() did not")
    finally:
        run.close()


def _plays_with_what_was_published(run: _Run) -> None:
    for _ in range(6):
        run.publish()
        run.take()
    for _ in range(run.request.max_staleness + 2):  # as in a warm start, whose epochs have no rollouts
        run.publish()
    run.take()


def _plays_evaluations(run: _Run) -> None:
    request = EvaluationRequest(lessons=(LESSON.lesson_id,), n_examples=8, seed=5)
    run.publish()
    for version, given in ((run.version, None), (run.version + 1, weights_of_version(run.version + 1))):
        found = _within(lambda given=given: run.source.evaluate(request, given), "evaluate()")  # type: ignore[misc]
        (expected,) = _worker(LESSON).play(request, key_of_evaluation(5), weights_of_version(version)).values()
        rewards = [episode.reward for episode in found.get(LESSON.lesson_id, ())]
        if rewards != [episode.reward for episode in expected]:
            which = "the published weights" if given is None else "the weights that it is given"
            raise SourceError(
                f"evaluate() does not play with {which}, or not with the rng keys of the request's seed: the rewards "
                f"are {rewards}, not {[episode.reward for episode in expected]}"
            )
    run.take()


def _goes_on_from_a_state(first: _Run, second: _Run) -> None:
    state = json.loads(json.dumps(first.source.state_dict()))
    first.close()
    second.source.load_state_dict(state)
    if (
        second.worker.step != first.worker.step
        or second.worker.curriculum.standings != first.worker.curriculum.standings
    ):
        raise SourceError("a state does not restore the worker: it must have RolloutWorker.state_dict() in it")
    second.publish(first.version)
    second.take()
    begun = [rollout.arrays["obs"][0].tolist() for rollout in first.taken]
    if any(rollout.arrays["obs"][0].tolist() in begun for rollout in second.taken):
        raise SourceError("after a state is restored, a rollout is made that was returned before it was saved")


def _survives_deaths(run: _Run) -> None:
    if run.look_for_workers():
        _kill(run, run.look_for_workers()[:1])
        _kill(run, run.look_for_workers())
    run.close()


def _kill(run: _Run, pids: Sequence[int]) -> None:
    """Kill these workers, and take rollouts until others are in their place."""
    restarted = run.announced["on_worker_restarted"]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    def all_are_replaced() -> bool:
        run.publish()
        run.take()
        return restarted + len(pids) <= run.announced["on_worker_restarted"] == run.announced["on_worker_lost"]

    _until(all_are_replaced, lambda: f"{len(pids)} worker(s) were killed. {SECONDS:g} s later: {dict(run.announced)}")


# -- parts ------------------------------------------------------------------------------------------------------------


def _worker(lesson: Lesson) -> RolloutWorker:
    curriculum = CurriculumConfig([lesson], micro_eval_frequency=None, eval_frequency=None)
    return RolloutWorker(RolloutWorkerConfig(curriculum, POLICY, num_environments=2, steps_per_rollout=4))


def weights_of_version(version: int) -> dict[str, Any]:
    """Weights that choose the action `version % 2`."""
    weights = POLICY.initial_weights(0)
    weights["actor.1.weight"][:] = 0.0
    weights["actor.1.bias"][:] = [-30.0, 30.0] if version % 2 else [30.0, -30.0]
    return weights


class _Run:
    """A source, and what was announced of it."""

    def __init__(self, factory: SourceFactory, request: SourceRequest) -> None:
        self.request = request
        self.worker = request.worker
        self.announced: Counter[str] = Counter()
        self.worker.plugins.register(_Listener(self.announced))
        before = _Resources()
        self.source: RolloutSource = factory(request)
        if before.leaks():
            raise SourceError(f"before the first publish() there are already {before.leaks()}")
        self.version = -1
        self.taken: list[Rollout] = []
        self.pids: set[int] = set()
        """All worker processes that were seen."""
        self._weights = POLICY.initial_weights(0)

    def publish(self, version: int | None = None) -> None:
        """Publish the weights of a version, in arrays that are changed in place each time."""
        self.version = self.version + 1 if version is None else version
        for name, values in weights_of_version(self.version).items():
            self._weights[name][:] = values
        _within(lambda: self.source.publish(self._weights, self.version), "publish()")

    def take(self) -> None:
        """Take some rollouts, and check them."""
        before = Counter(self.announced)
        rollouts = _within(lambda: self.source.next(ROLLOUTS), f"next({ROLLOUTS})")
        if len(rollouts) != ROLLOUTS:
            raise SourceError(f"next({ROLLOUTS}) returned {len(rollouts)} rollouts")
        for rollout in rollouts:
            self._check_rollout(rollout)
        for event in ("on_rollout_start", "on_rollout_end"):
            if self.announced[event] - before[event] != ROLLOUTS:
                raise SourceError(f"next({ROLLOUTS}) emitted {event} {self.announced[event] - before[event]} times")
        for name, value in self.source.numbers().items():
            if not isinstance(value, float) or not math.isfinite(value):
                raise SourceError(f"numbers() has {name} = {value!r}: it must be a finite float")
        self.taken += rollouts
        self.look_for_workers()

    def look_for_workers(self) -> list[int]:
        """The worker processes that there are now."""
        found = self.source.pids()
        self.pids |= set(found)
        return found

    def _check_rollout(self, rollout: Rollout) -> None:
        version = rollout.weights_version
        if not 0 <= self.version - version <= self.request.max_staleness:
            raise SourceError(
                f"a rollout has version {version}, when {self.version} was published and max_staleness is "
                f"{self.request.max_staleness}"
            )
        if not (rollout.arrays["actions"] == version % 2).all():
            raise SourceError(
                f"a rollout of version {version} was made with other weights: copy them in publish(), if they are read "
                "after it, and have a worker load them before it plays"
            )

    def close(self) -> None:
        for _ in range(2):
            _within(self.source.close, "close()")


class _Listener:
    def __init__(self, announced: Counter[str]) -> None:
        self._announced = announced

    @hookimpl
    def on_rollout_start(self) -> None:
        self._announced["on_rollout_start"] += 1

    @hookimpl
    def on_rollout_end(self) -> None:
        self._announced["on_rollout_end"] += 1

    @hookimpl
    def on_worker_lost(self) -> None:
        self._announced["on_worker_lost"] += 1

    @hookimpl
    def on_worker_restarted(self) -> None:
        self._announced["on_worker_restarted"] += 1


class Broken:
    """An environment with Gymnasium's methods that fails at its first step."""

    @dataclass(frozen=True)
    class Discrete:
        """A space. The worker knows Gymnasium's spaces by their names."""

        n: int
        start: int = 0

    render_mode = None
    observation_space, action_space = Discrete(4), Discrete(2)

    def reset(self, **_: Any) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, _: Any) -> None:
        raise OSError("the floor is wet")

    def close(self) -> None:
        pass


class _Resources:
    """The threads, processes, files and shared memory that there are now."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._children = _children()
        self._files = _open_files()
        self._shared = _shared_memory()

    def leaks(self, pids: Set[int] = frozenset()) -> str:
        """What there is more of by now. Empty if there is nothing.

        :param pids: processes that should be gone, though they may be children of another one.
        """
        found: dict[str, list[Any]] = {
            "threads": [own.name for own in threading.enumerate() if own not in self._threads],
            "processes": sorted((_children() - self._children) | set(filter(_is_alive, pids))),
            "files": sorted((_open_files() - self._files).elements()),
            "shared memory": sorted(_shared_memory() - self._shared),
        }
        return "; ".join(f"{what}: {', '.join(map(str, own))}" for what, own in found.items() if own)


def _children() -> set[int]:
    """The child processes, where the system lists them."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found |= set(map(int, file.read_text().split()))
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _open_files() -> Counter[str]:
    """How many files of each kind are open, where the system lists them."""
    kinds: Counter[str] = Counter()
    for file in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            kinds[str(file.readlink()).partition(":[")[0]] += 1
    return kinds


def _shared_memory() -> set[str]:
    return {file.name for file in Path("/dev/shm").glob("*")}


def _within(call: Callable[[], Result], what: str) -> Result:
    """The result of a call, which must return in time."""
    outcome: list[tuple[Result | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    seconds = SECONDS
    thread = threading.Thread(target=run, name="check_source", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise SourceError(f"{what} did not return in {seconds:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _until(condition: Callable[[], bool], fault: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SourceError(fault())
        time.sleep(0.05)
