"""The sections of a report. A section without metrics is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from hookline_hookspecs.redaction import redact
from hookline_metrics.failures import read_failures
from hookline_metrics.measurements import PHASES
from hookline_metrics.report.charts import Curve, LessonSteps, lesson_chart, line_chart, share_bar
from hookline_metrics.report.scales import format_number
from hookline_metrics.report.transcripts import transcripts
from hookline_metrics.run_reader import RunReader, Series
from hookline_metrics.summaries import LOSSES, REWARDS, VALIDATION_LOSSES, lesson_scores

__all__ = ["sections"]

Section = tuple[str, list[str]]


def sections(run: RunReader) -> Iterator[Section]:
    """Titles, each with its cards as HTML."""
    shown: set[str] = set()
    for title, cards in (
        ("Learning", _learning(run, shown)),
        ("Lessons", _lessons(run, shown)),
        ("Reward quality", _reward_quality(run, shown)),
        ("Newest episodes", transcripts(run.folder)),
        ("Failures of plugins", _failures(run)),
        ("Time", _time(run, shown)),
        ("Source of rollouts", _source(run, shown)),
        ("Gradients", _gradients(run, shown)),
        ("System", _system(run, shown)),
        ("Everything else", _rest(run, shown)),
    ):
        found = list(cards)
        if found:
            yield title, found


def card(title: str, content: str, note: str = "", *, wide: bool = False) -> str:
    style = "card wide" if wide else "card"
    return (
        f'<figure class="{style}"><figcaption>{escape(title)}<span>{escape(note)}</span></figcaption>{content}</figure>'
    )


def _curve(series: Series, label: str | None = None) -> Curve:
    return Curve(label or series.name, list(zip(series.steps, series.values, strict=True)), is_noisy=label is None)


def _single(run: RunReader, name: str, shown: set[str], title: str | None = None) -> str:
    shown.add(name)
    series = run.series(name)
    return card(title or name, line_chart([_curve(series)]), f"last {format_number(series.last)}")


def _learning(run: RunReader, shown: set[str]) -> Iterator[str]:
    for title, names in (("Loss", LOSSES), ("Validation loss", VALIDATION_LOSSES), ("Reward", REWARDS)):
        name = next((name for name in names if name in run.names), None)
        if name is not None:
            yield _single(run, name, shown, f"{title} · {name}")
    for kind, lessons in lesson_scores(run.names).items():
        shown.update(lessons.values())
        curves = [_curve(run.series(name), lesson) for lesson, name in lessons.items()]
        what, where = ("Success per lesson", [kind]) if len(lessons) > 1 else ("Success", [kind, *lessons])
        yield card(" · ".join(filter(None, [what, *where])), line_chart(curves, y_range=(0.0, 1.0)))


def _lessons(run: RunReader, shown: set[str]) -> Iterator[str]:
    prefix = "curriculum/"
    names = [name for name in run.names if name.startswith(prefix)]
    by_lesson: dict[str, dict[str, str]] = {}
    for name in names:
        lesson, _, what = name.removeprefix(prefix).rpartition("/")
        if what in ("unlocked", "graduated", "success", "reward"):
            by_lesson.setdefault(lesson, {})[what] = name
            shown.add(name)
    lessons = []
    by_lesson = dict(sorted(by_lesson.items()))
    for lesson, found in by_lesson.items():
        unlocked = run.series(found["unlocked"]).steps if "unlocked" in found else []
        graduated = run.series(found["graduated"]).steps if "graduated" in found else []
        if unlocked or graduated:
            success = run.last(found["success"]) if "success" in found else None
            lessons.append(
                LessonSteps(lesson, min([*unlocked, *graduated]), min(graduated) if graduated else None, success)
            )
    if not lessons:
        return
    lessons.sort(key=lambda lesson: lesson.unlocked)
    done = sum(lesson.graduated is not None for lesson in lessons)
    yield card(
        "From unlocked to graduated", lesson_chart(lessons, run.step), f"{done} of {len(lessons)} graduated", wide=True
    )
    for what, title, limits in (
        ("success", "Success in training, moving average", (0.0, 1.0)),
        ("reward", "Reward in training", None),
    ):
        curves = [_curve(run.series(found[what]), lesson) for lesson, found in by_lesson.items() if what in found]
        if curves:
            yield card(title, line_chart(curves, y_range=limits))


def _reward_quality(run: RunReader, shown: set[str]) -> Iterator[str]:
    """A chart for each metric that changes, one for the failure rates of all verifiers, and a table of constants."""
    prefix, failures = "rewards/", "rewards/failure_rate/"
    names = [name for name in run.names if name.startswith(prefix) and name not in shown]
    shown.update(names)
    rates = [name for name in names if name.startswith(failures)]
    constant = []
    for name in names:
        values = run.series(name).values
        if name in rates:
            continue
        if len(values) > 1 and min(values) == max(values):
            constant.append(f"<tr><td>{escape(name.removeprefix(prefix))}</td><td>{format_number(values[0])}</td></tr>")
        else:
            yield _single(run, name, shown, name.removeprefix(prefix))
    if rates:
        curves = [_curve(run.series(name), name.removeprefix(failures)) for name in rates]
        yield card("Failure rate per verifier", line_chart(curves))
    if constant:
        yield card("Constant", f"<table><tbody>{''.join(constant)}</tbody></table>")


def _failures(run: RunReader) -> Iterator[str]:
    rows = []
    for failure in redact(read_failures(run.folder), by_names=False):
        cells = ["" if failure.get(key) is None else str(failure[key]) for key in ("plugin", "event", "what", "times")]
        rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    if rows:
        heading = "<thead><tr><th>plugin</th><th>event</th><th>what happened</th><th>times</th></tr></thead>"
        yield card(
            "Failed, dropped or quarantined", f"<table>{heading}<tbody>{''.join(rows)}</tbody></table>", wide=True
        )


def _time(run: RunReader, shown: set[str]) -> Iterator[str]:
    spent: dict[str, float] = {}
    for phase in PHASES:
        name = f"time/{phase}"
        shown.update((name, f"{name}_share"))
        seconds = sum(run.series(name).values) if name in run.names else 0.0
        if seconds:
            spent[phase] = seconds
    if spent:
        yield card("Time per phase", share_bar(spent), wide=True)
        yield from _shares(run, list(spent))
    for name in run.names:
        if name.startswith("rate/"):
            yield _single(run, name, shown, name.removeprefix("rate/").replace("_", " "))
    progress = next((run.series(name) for name in (*LOSSES, "run/started") if name in run.names), None)
    if progress is not None and len(progress.steps) > 1:
        minutes = [(when - progress.times[0]) / 60 for when in progress.times]
        if all(a <= b for a, b in pairwise(minutes)):
            curve = Curve("steps", list(zip(minutes, map(float, progress.steps), strict=True)))
            yield card("Gradient steps over time", line_chart([curve], x_label="min"))


def _shares(run: RunReader, phases: Sequence[str]) -> Iterator[str]:
    """Each phase's share of an epoch, 0 in an epoch without that phase."""
    found = {phase: run.series(f"time/{phase}_share") for phase in phases}
    steps = sorted({step for series in found.values() for step in series.steps})
    if len(steps) > 1:
        curves = []
        for phase, series in found.items():
            values = dict(zip(series.steps, series.values, strict=True))
            curves.append(Curve(phase, [(step, values.get(step, 0.0)) for step in steps]))
        yield card("Share of each epoch", line_chart(curves, y_range=(0.0, 1.0)))


def _source(run: RunReader, shown: set[str]) -> Iterator[str]:
    """Staleness, idle time of trainer and workers, and what was dropped or lost, of a source that works ahead."""
    for title, labels in (
        ("Staleness of rollouts, in versions of the weights", {"staleness": "mean", "staleness_max": "oldest"}),
        ("Idle share", {"trainer_idle_share": "trainer", "worker_idle_share": "workers"}),
    ):
        names = {label: f"source/{name}" for name, label in labels.items() if f"source/{name}" in run.names}
        shown.update(names.values())
        if names:
            limits = (0.0, 1.0) if title.startswith("Idle") else None
            yield card(
                title, line_chart([_curve(run.series(name), own) for own, name in names.items()], y_range=limits)
            )
    rows = []
    for name, what in {
        "source/dropped_rollouts": "rollouts dropped, because they were too stale",
        "source/lost_workers": "workers lost and replaced",
        "source/trainer_idle_seconds": "seconds that the trainer waited for rollouts",
    }.items():
        if name in run.names:
            shown.add(name)
            rows.append(f"<tr><td>{what}</td><td>{format_number(sum(run.series(name).values))}</td></tr>")
    if rows:
        yield card("In all", f"<table><tbody>{''.join(rows)}</tbody></table>")


def _gradients(run: RunReader, shown: set[str]) -> Iterator[str]:
    for name in ("gradients/norm", "train/grad_norm"):
        if name in run.names:
            yield _single(run, name, shown, name)
    for what in ("norm", "variance"):
        names = [n for n in run.names if n.startswith("gradients/") and n.endswith(f"/{what}") and n not in shown]
        shown.update(names)
        if names:
            curves = [_curve(run.series(name), name.split("/", 1)[1].rpartition("/")[0]) for name in names]
            yield card(f"Gradient {what} per module", line_chart(curves))


def _system(run: RunReader, shown: set[str]) -> Iterator[str]:
    began = run.started or 0.0
    names = [name for name in run.names if name.startswith("system/")]
    shown.update(names)
    percents = [name for name in names if name.endswith("percent") and "process" not in name]

    def over_time(name: str) -> Curve:
        series = run.series(name)
        label = name.removeprefix("system/").replace("_percent", "").replace("/percent", "")
        return Curve(label, [((t - began) / 60, v) for t, v in zip(series.times, series.values, strict=True)])

    if percents:
        yield card(
            "Load in percent", line_chart([over_time(name) for name in percents], x_label="min", y_range=(0.0, 100.0))
        )
    for name in names:
        if name not in percents:
            yield card(name.removeprefix("system/").replace("_", " "), line_chart([over_time(name)], x_label="min"))


def _rest(run: RunReader, shown: set[str]) -> Iterator[str]:
    names: Sequence[str] = [name for name in run.names if name not in shown and not name.startswith("run/")]
    if names:
        cards = "".join(_single(run, name, shown) for name in names)
        summary = f"<summary>{len(names)} more metrics</summary>"
        yield f'<details class="wide">{summary}<div class="cards">{cards}</div></details>'
