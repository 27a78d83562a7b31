"""What an event costs: with nothing due, and with plain implementations, beside other people's callbacks.

    python benchmarks/dispatch.py [--json FILE]

The first table sets an event without implementations, or with none due, beside a bare method call.
The second sets a notify event beside the callbacks of pluggy and three trainers, each calling as many empty bodies.
It takes about half a minute. Promises that were not kept are marked, and are no error: a machine may be busy.
"""

from __future__ import annotations

from typing import Final

from dispatch_contenders import CALLS_PER_STATEMENT, CONTENDERS, NOTHING_DUE, Contender, hookline, method
from measuring import Table, best_of_rounds, describe_machine, format_seconds, json_option, report

Contenders = dict[tuple[str, int], Contender]
"""By name and number of plugins."""

COUNTS: Final = (0, 1, 5, 20, 100)

METHOD_CALLS: Final = 2.0
"""What an event with nothing due may cost, in method calls."""

FLAT: Final = 1.2
"""How far the times for 1 to 100 plugins may lie apart and still count as the same: two runs of one thing do by 1.1."""

OF_PLUGGY: Final = 1 / 8
"""What a notify event may cost, in calls by pluggy. Of the others' it may cost anything less than theirs."""


def nothing_due() -> Table:
    contenders: Contenders = {(case, count): build(count) for case, build in NOTHING_DUE.items() for count in COUNTS}
    for contender in contenders.values():
        contender.check(0)
    contenders["method", 0] = method()
    contenders["method", 0].check(1)
    seconds = _seconds_per_call(contenders)

    table = Table(
        "An event with nothing due (ratio: to the method call)",
        f"at most {METHOD_CALLS:g} times a method call, and flat",
        ["plugins", "method call", *(column for case in NOTHING_DUE for column in (case, "ratio")), "held"],
    )
    bare = seconds["method", 0]
    for count in COUNTS:
        ours = {case: seconds[case, count] for case in NOTHING_DUE}
        missed = [case for case, time in ours.items() if time > METHOD_CALLS * bare]
        table.add(
            [
                str(count),
                format_seconds(bare),
                *(cell for time in ours.values() for cell in (format_seconds(time), f"{time / bare:.2f}")),
                _verdict(missed),
            ],
            plugins=count,
            method=bare,
            **ours,
            held=not missed,
        )
    with_plugins = [seconds["not due", count] for count in COUNTS if count]
    spread = max(with_plugins) / min(with_plugins)
    table.remarks.append(
        f"flat: from 1 to {max(COUNTS)} plugins not due, the slowest is {spread:.2f} times the fastest "
        f"(held: {'yes' if spread <= FLAT else 'no'}; up to {FLAT:g} is noise)"
    )
    return table


def notify() -> Table:
    contenders: Contenders = {("hookline", count): hookline(count) for count in COUNTS}
    present, absent = [], []
    for name, build in CONTENDERS.items():
        try:
            contenders |= {(name, count): build(count) for count in COUNTS}
        except ImportError as error:
            absent.append(f"absent: {name} ({error})")
        else:
            present.append(name)
    for (_, count), contender in contenders.items():
        contender.check(count)
    seconds = _seconds_per_call(contenders)

    table = Table(
        "A notify event, implementations with empty bodies (ratio: of our time to theirs)",
        "from 1 plugin on, at most 1/8 of pluggy's time, and less than any other's",
        ["plugins", "hookline", *(column for name in present for column in (name, "ratio")), "held"],
        remarks=absent,
    )
    for count in COUNTS:
        ours = seconds["hookline", count]
        theirs = {name: seconds[name, count] for name in present}
        missed = [name for name in present if not _is_kept(name, ours / theirs[name])]
        table.add(
            [
                str(count),
                format_seconds(ours),
                *(cell for time in theirs.values() for cell in (format_seconds(time), f"{ours / time:.3f}")),
                _verdict(missed) if count else "-",
            ],
            plugins=count,
            hookline=ours,
            **theirs,
            held=not missed if count else None,
        )
    return table


def _seconds_per_call(contenders: Contenders) -> dict[tuple[str, int], float]:
    # All counts in one field: a machine that is slow for a while is slow for all of them.
    best = best_of_rounds({key: contender.timer() for key, contender in contenders.items()}, rounds=400)
    return {key: seconds / CALLS_PER_STATEMENT for key, seconds in best.items()}


def _is_kept(name: str, ratio: float) -> bool:
    return ratio <= OF_PLUGGY if name == "pluggy" else ratio < 1


def _verdict(missed: list[str]) -> str:
    return f"no: {'; '.join(missed)}" if missed else "yes"


if __name__ == "__main__":
    json_file = json_option(__doc__)
    tables = [nothing_due(), notify()]
    report(describe_machine("hookline", *CONTENDERS), tables, json_file)
