"""PPO on CartPole: steps a second beside a plain loop, the cost of plugins, time to solve it beside stable-baselines3.

    python benchmarks/ppo.py [--json FILE]

Both contenders of the first table have CleanRL's hyperparameters and take turns, each in processes of its own and for
as many iterations; a round's ratio is that of their median iterations, and the median round counts. The second table is
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
from typing import Any

from measuring import Table, describe_machine, json_option, report

HERE = Path(__file__).parent
ROUNDS, ITERATIONS, SEEDS = 5, 40, (10, 11, 12, 13, 14)
PLUGIN_ROUNDS, PLUGIN_ITERATIONS = 3, 300


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
    rounds = [
        (float(run("ppo_plain.py", str(ITERATIONS))[0]), float(run("ppo_hookline.py", "rate", str(ITERATIONS))[0]))
        for _ in range(ROUNDS)
    ]
    plain, ours = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    ratios = sorted(own / other for other, own in rounds)
    ratio = statistics.median(ratios)
    table.add(["plain loop", f"{plain:,.0f}", "1"], contender="plain loop", steps_per_second=plain)
    kept = "" if ratio >= 5 else "  (promise not kept)"
    cells = ["hookline", f"{ours:,.0f}", f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}){kept}"]
    table.add(cells, contender="hookline", steps_per_second=ours, ratio=ratio, ratios=ratios)
    return table


def cost_of_plugins(folder: Path) -> Table:
    table = Table(
        f"All five plugins on, {PLUGIN_ITERATIONS} iterations of CleanRL's hyperparameters",
        "at most 3 % slower than none",
        ["plugins", "steps/s, median iteration", "slower by", "steps/s, whole run", "slower by"],
    )
    names = {
        "none": "none",
        "background": "all five, evaluations in a process of their own",
        "all": "all five, evaluations in the training process",
    }
    found: dict[str, list[tuple[float, float]]] = {which: [] for which in names}
    for number in range(PLUGIN_ROUNDS):
        for which in names:
            printed, _ = run(
                "ppo_hookline.py", "plugins", str(PLUGIN_ITERATIONS), which, str(folder / f"{which}{number}")
            )
            median, mean = map(float, printed.split())
            found[which].append((median, mean))
    for which, rounds in found.items():
        cells = [names[which]]
        measured: dict[str, Any] = {}
        for place, kind in enumerate(("median", "mean")):
            rates = [own[place] for own in rounds]
            # Each beside the run without plugins of its own round.
            slower = statistics.median(
                before[place] / own[place] - 1 for before, own in zip(found["none"], rounds, strict=True)
            )
            kept = "" if slower <= 0.03 else "  (promise not kept)"
            cells += [f"{statistics.median(rates):,.0f}", "-" if which == "none" else f"{slower:.1%}{kept}"]
            measured |= {f"{kind}_rates": rates, f"{kind}_slower": slower}
        table.add(cells, plugins=which, **measured)
    table.remarks.append(
        "Evaluations are every 10 iterations, of 64 episodes: more environment steps than the iterations between them."
    )
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
        report(machine, [rates(), cost_of_plugins(Path(cache)), times_to_solve(cache)], json_file)


if __name__ == "__main__":
    main()
