"""`check_emitter`: whether a training loop keeps the promises of the event contract.

    def run(plugin):
        trainer = Trainer(config, plugins=manager_with(plugin))    # however the loop takes plugins
        trainer.train()

    def test_our_loop_is_a_good_emitter():
        check_emitter(run)

The loop runs twice: once to its end, and once with a plugin that raises after its first gradient step. It must be
small, and take at least two gradient steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hookline.testing.conformance import REPORTS
from hookline_hookspecs import TrainerState, hookimpl

__all__ = ["EmitterError", "check_emitter"]

WITH_METRICS: Final = ("post_training_step", "post_validation")
"""Events whose `report_data` may have metrics besides its own keys."""

PAIRS: Final[Mapping[str, str]] = {
    "on_epoch_start": "on_epoch_end",
    "on_train_phase_start": "on_train_phase_end",
    "pre_training_step": "post_training_step",
    "pre_validation": "post_validation",
    "pre_validation_step": "post_validation_step",
}
"""Events that come in pairs, the second before the next of the first."""

BEGINNING: Final = ("on_new_training_run", "pre_training")
END: Final = ("post_training", "on_training_complete")
EVENTS: Final = (*BEGINNING, *PAIRS, "on_mb_end", *PAIRS.values(), *END, "on_training_failed")
NEEDED: Final = (*BEGINNING, "on_epoch_start", "on_epoch_end", "pre_training_step", "on_mb_end", "post_training_step")


class EmitterError(AssertionError):
    """A loop breaks the event contract; the message lists every promise that does not hold."""


@dataclass(frozen=True)
class Seen:
    """One event as the recording plugin saw it."""

    name: str
    epoch: int
    step: int
    report: Mapping[str, Any] = field(default_factory=dict)


class StopInTheMiddle(Exception):  # noqa: N818 - not an error of the loop
    """Raised by the recording plugin in the second run."""


class Recorder:
    """A plugin that records the events of a run. It is critical, so that it ends the run when it raises."""

    critical = True

    def __init__(self, fail_at_step: int | None = None) -> None:
        self.seen: list[Seen] = []
        self._fail_at_step = fail_at_step
        for event in EVENTS:
            setattr(self, event, self._implementation(event))

    def _implementation(self, event: str) -> Callable[..., None]:
        @hookimpl(specname=event)
        def see(
            state: TrainerState, report_data: Mapping[str, Any] | None = None, error: BaseException | None = None
        ) -> None:
            report = dict(report_data or {}) if error is None else {"error": error}
            self.seen.append(Seen(event, state.epoch, state.step, report))
            if event == "post_training_step" and state.step == self._fail_at_step:
                raise StopInTheMiddle(f"a plugin fails on purpose at step {state.step}")

        return see


def check_emitter(run: Callable[[object], Any]) -> None:
    """Run a loop with a recording plugin, and raise an `EmitterError` that lists the promises it breaks.

    :param run: runs the loop from its start to its end with this plugin among its plugins, in this process.
    """
    recorder = Recorder()
    run(recorder)
    faults = [*_order(recorder.seen), *_reports(recorder.seen), *_counters(recorder.seen)]
    faults += _end(recorder.seen)
    if not faults:  # a loop whose events are out of order has no middle to fail in
        faults += _failure(run, fail_at_step=recorder.seen[0].step + 1)
    if faults:
        shown = "\n".join(f"  - {fault}" for fault in faults)
        raise EmitterError(f"the loop breaks {len(faults)} promise(s) of the event contract:\n{shown}")


def _order(seen: list[Seen]) -> list[str]:
    names = [event.name for event in seen]
    faults = [f"{name} is never emitted" for name in NEEDED if name not in names]
    if faults:
        return faults
    if tuple(names[:2]) != BEGINNING:
        faults.append(f"a run begins with on_new_training_run and pre_training, not with {names[0]} and {names[1]}")
    for first, second in PAIRS.items():
        is_open = False
        for name in names:
            if name == first and is_open:
                faults.append(f"{first} is emitted again before {second}")
                break
            if name == second and not is_open:
                faults.append(f"{second} is emitted without {first} before it")
                break
            is_open = name == first or (is_open and name != second)
        if is_open:
            faults.append(f"the last {first} has no {second} after it")
    between = names[names.index("pre_training_step") :]
    if "on_mb_end" not in between[: between.index("post_training_step")]:
        faults.append("on_mb_end must lie between pre_training_step and post_training_step")
    return faults


def _reports(seen: list[Seen]) -> list[str]:
    faults = []
    for name, sample in REPORTS.items():
        keys = {key for key in sample if "/" not in key}  # the others are metrics
        for event in (event for event in seen if event.name == name):
            missing, extra = keys - event.report.keys(), event.report.keys() - keys
            if missing:
                faults.append(f"report_data of {name} lacks {', '.join(sorted(missing))}")
            if extra and name not in WITH_METRICS:
                faults.append(f"report_data of {name} has {', '.join(sorted(map(str, extra)))}, which is not its own")
            if missing or extra:
                break
    return list(dict.fromkeys(faults))


def _counters(seen: list[Seen]) -> list[str]:
    faults = []
    steps = [event.step for event in seen if event.name == "post_training_step"]
    start = seen[0].step
    if steps != list(range(start + 1, start + 1 + len(steps))):
        faults.append(f"state.step must count 1 at each post_training_step, from {start}; it was {_shown(steps)}")
    for event in seen:
        step = event.report.get("current_step")
        if step is not None and step != event.step:
            faults.append(f"at {event.name} current_step is {step}, and state.step is {event.step}")
            break
    epochs = [event.epoch for event in seen if event.name == "on_epoch_start"]
    if epochs and epochs != list(range(epochs[0], epochs[0] + len(epochs))):
        faults.append(f"state.epoch must count 1 at each on_epoch_start; it was {_shown(epochs)}")
    ends = [event.epoch for event in seen if event.name == "on_epoch_end"]
    if ends != epochs[: len(ends)]:
        faults.append(f"state.epoch at on_epoch_end must be that of the epoch's start; it was {_shown(ends)}")
    return faults


def _end(seen: list[Seen]) -> list[str]:
    names = [event.name for event in seen]
    faults = []
    if tuple(names[-2:]) != END:
        faults.append(f"a complete run ends with post_training and on_training_complete, not with {_shown(names[-2:])}")
    elif seen[-2].report.get("final_step") != seen[-2].step:
        faults.append(f"final_step is {seen[-2].report.get('final_step')}, and state.step is {seen[-2].step}")
    if "on_training_failed" in names:
        faults.append("on_training_failed is emitted in a run that is complete")
    return faults


def _failure(run: Callable[[object], Any], fail_at_step: int) -> list[str]:
    recorder = Recorder(fail_at_step)
    try:
        run(recorder)
    except BaseException as error:
        if not _is_caused_by_us(error):
            return [f"when a critical plugin raises, its error must reach the caller, not {error!r}"]
    else:
        return ["when a critical plugin raises, the loop goes on: its error must end the run"]
    names = [event.name for event in recorder.seen]
    faults = []
    if names.count("on_training_failed") != 1:
        faults.append(f"a run that fails emits on_training_failed once, not {names.count('on_training_failed')} times")
    elif names[-1] != "on_training_failed":
        faults.append(f"after on_training_failed nothing may follow, and {names[-1]} does")
    elif not _is_caused_by_us(recorder.seen[-1].report["error"]):
        faults.append("on_training_failed must carry the error that ended the run")
    if "on_training_complete" in names:
        faults.append("on_training_complete is emitted in a run that failed")
    return faults


def _is_caused_by_us(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_caused_by_us, error.exceptions))
    while error is not None and not isinstance(error, StopInTheMiddle):
        error = error.__cause__ or error.__context__
    return error is not None


def _shown(values: list[Any]) -> str:
    text = ", ".join(map(str, values[:8]))
    return f"{text}, ..." if len(values) > 8 else text
