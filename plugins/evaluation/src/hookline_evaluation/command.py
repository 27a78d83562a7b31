"""The command `hookline evaluate`: evaluates a checkpoint, or serves evaluations to other machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import hookline.parsing
from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.options import Options
from hookline_hookspecs import HooklineError

__all__ = ["evaluate"]


def evaluate(
    target: Path | None = None,
    *,
    lesson: Annotated[tuple[str, ...], hookline.parsing.Parameter(negative="")] = (),
    n_examples: int = 64,
    sampled: Annotated[bool, hookline.parsing.Parameter(negative="")] = False,
    samples_per_problem: int = 1,
    pass_at: Annotated[tuple[int, ...], hookline.parsing.Parameter(negative="")] = (),
    seed: int = 0,
    as_json: Annotated[bool, hookline.parsing.Parameter(name="--json", negative="")] = False,
    serve: Annotated[bool, hookline.parsing.Parameter(negative="")] = False,
    host: str = "127.0.0.1",
    port: int = 8765,
    root: Path = Path(),
    timeout_seconds: float = 600.0,
) -> None:
    """Evaluate a checkpoint, by default a run's newest; or serve evaluations.

    Parameters
    ----------
    target
        The folder of a run, or of a checkpoint.
    lesson
        Evaluate only this lesson; may be given several times.
    n_examples
        Examples or episodes for each lesson.
    sampled
        Sample actions and tokens rather than take the most likely.
    samples_per_problem
        Responses to each problem of a text lesson; more than one needs `--sampled`.
    pass_at
        Compute pass@k for this k; may be given several times.
    seed
        The seed of the evaluation.
    as_json
        Print JSON.
    serve
        Run the server for runs with `mode = "remote"`. The token is read from HOOKLINE_EVALUATION_TOKEN; without one,
        only this machine can call.
    host
        The address to serve on.
    port
        The port to serve on; 0 for any that is free.
    root
        The server evaluates only checkpoints in this folder.
    timeout_seconds
        How long an evaluation by the server may take.
    """
    try:
        if serve:
            _serve(host, port, root, timeout_seconds)
            return
        if target is None:
            raise HooklineError("nothing to evaluate: use hookline evaluate RUN, or hookline evaluate --serve")
        options = Options(
            lessons=lesson,
            n_examples=n_examples,
            greedy=not sampled,
            samples_per_problem=samples_per_problem,
            pass_at=pass_at,
            seed=seed,
            replays=0,
        )
        _evaluate(target, options, as_json=as_json)
    except (EvaluationError, ValueError) as error:
        raise HooklineError(str(error)) from error


def _evaluate(target: Path, options: Options, *, as_json: bool) -> None:
    from hookline_evaluation.out_of_process.checkpoints import counters_of, find_checkpoint
    from hookline_evaluation.out_of_process.evaluate_checkpoint import evaluate_checkpoint

    checkpoint = find_checkpoint(target)
    outcome = evaluate_checkpoint(checkpoint, options.full_request())
    scores = outcome.to_json()["scores"]
    if as_json:
        print(json.dumps({"checkpoint": str(checkpoint), **counters_of(checkpoint), "scores": scores}, indent=2))
    else:
        _print_table(checkpoint, scores)


def _print_table(checkpoint: Path, scores: Mapping[str, float]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rows: dict[str, dict[str, float]] = {}
    for name, value in scores.items():
        row, _, column = name.rpartition("/")
        rows.setdefault(row, {})[column] = value
    columns = list(dict.fromkeys(column for own in rows.values() for column in own))
    table = Table(title=escape(str(checkpoint)), title_justify="left")
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(escape(column.replace("_", " ")), justify="right")  # with spaces, so that it can wrap
    for name, own in rows.items():
        table.add_row(escape(name), *(f"{own[column]:.4g}" if column in own else "" for column in columns))
    Console().print(table)


def _serve(host: str, port: int, root: Path, timeout_seconds: float) -> None:
    from hookline.http.requests import read_token
    from hookline_evaluation.out_of_process.client import TOKEN_VARIABLE
    from hookline_evaluation.out_of_process.server import EvaluationServer

    if not root.is_dir():
        raise HooklineError(f"--root: there is no folder {root}")
    try:
        server = EvaluationServer(
            host, port, root=root, token=read_token(TOKEN_VARIABLE), timeout_seconds=timeout_seconds
        )
    except OSError as error:
        raise HooklineError(f"cannot serve on {host} port {port}: {error.strerror}") from error
    who = "callers with the token" if server.token else "all callers on this machine, since there is no token"
    print(f"evaluating checkpoints in {root.resolve()} for {who}, at http://{host}:{server.server_port}")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
