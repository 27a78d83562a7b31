"""PPO on CartPole: steps a second beside a plain loop, time to solve it beside stable-baselines3.

    python benchmarks/ppo.py [--json FILE]

All contenders of the first table have CleanRL's hyperparameters and take turns, each in processes of its own and for
as many iterations; a round's ratio is that of their median iterations, and the median round counts. The last table is
of whole processes, from start to end, each contender with settings that suit it; a run ends when the last 100 episodes
that training itself played have a mean return of 475. Our settings were chosen on seeds 0 to 2, and are judged on
others. JAX's compilation cache is warm, and torch has one thread.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from measuring import Table, describe_machine, json_option, report

HERE = Path(__file__).parent
ROUNDS, ITERATIONS, SEEDS = 5, 40, (10, 11, 12, 13, 14)


def run(script: str, *arguments: str) -> tuple[str, float]:
    """What a script printed last, and how long its process took."""
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    seconds = time.perf_counter() - start
    if result.returncode:
        raise RuntimeError(f"{script} failed:\n{result.stderr}")
    return result.stdout.splitlines()[-1], seconds


def rates() -> Table:
    table = Table(
        "Environment steps per second, CleanRL's hyperparameters",
        "at least 5 times the plain loop",
        ["contender", "steps/s", "ratio"],
    )
    scripts = {
        "plain loop": ("ppo_plain.py",),
        "hookline": ("ppo_hookline.py", "rate"),
        "hookline by autograd alone": ("ppo_hookline.py", "rate-autograd"),
    }
    rounds = [
        {name: float(run(*script, str(ITERATIONS))[0]) for name, script in scripts.items()} for _ in range(ROUNDS)
    ]
    for name in scripts:
        ratios = sorted(found[name] / found["plain loop"] for found in rounds)
        rate, ratio = statistics.median(found[name] for found in rounds), statistics.median(ratios)
        kept = "" if name != "hookline" or ratio >= 5 else "  (promise not kept)"
        shown = "1" if name == "plain loop" else f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}){kept}"
        table.add([name, f"{rate:,.0f}", shown], contender=name, steps_per_second=rate, ratio=ratio, ratios=ratios)
    table.remarks.append("By autograd alone: without the learner's hand-written step, which is the only difference.")
    return table


def times_to_solve(cache: str) -> Table:
    table = Table(
        "Seconds until 100 episodes have a mean return of 475, process start to end",
        "at least 4 times sooner than stable-baselines3",
        ["contender", "median s", "each s", "environment steps", "ratio"],
    )
    scripts = {"hookline": ("ppo_hookline.py", "solve", cache)}
    if find_spec("stable_baselines3") is None:
        table.remarks.append("stable-baselines3 is absent: pip install -r benchmarks/requirements.txt")
    else:
        scripts = {"stable-baselines3": ("ppo_sb3.py", "", ""), **scripts}
    run("ppo_hookline.py", "solve", str(SEEDS[0]), cache)  # warms the compilation cache
    found: dict[str, list[tuple[str, float]]] = {name: [] for name in scripts}
    for seed in SEEDS:
        for name, (script, mode, last) in scripts.items():
            found[name].append(run(script, *filter(None, (mode, str(seed), last))))
    medians = {name: statistics.median(seconds for _, seconds in results) for name, results in found.items()}
    for name, results in found.items():
        ratio = medians["stable-baselines3"] / medians[name] if "stable-baselines3" in medians else float("nan")
        kept = "  (promise not kept)" if name == "hookline" and ratio < 4 else ""
        table.add(
            [
                name,
                f"{medians[name]:.1f}",
                ", ".join(f"{seconds:.1f}" for _, seconds in results),
                ", ".join(steps for steps, _ in results),
                f"{ratio:.2f}{kept}",
            ],
            contender=name,
            seconds=[seconds for _, seconds in results],
            steps=[steps for steps, _ in results],
            ratio=ratio,
        )
    return table


def main() -> None:
    json_file = json_option(__doc__)
    machine = describe_machine("torch", "jax", "gymnasium", "stable-baselines3")
    with tempfile.TemporaryDirectory() as cache:
        report(machine, [rates(), times_to_solve(cache)], json_file)


if __name__ == "__main__":
    main()
