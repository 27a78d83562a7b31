"""What the five plugins cost a run, beside none in the same run.

    python benchmarks/plugins.py [--json FILE]      # five runs for each of two settings, ten minutes

A run is one of PPO on CartPole with all plugins: an evaluation of 64 episodes every 100 iterations with its replay,
checkpoints, metrics, status. During it, the plugins are taken out for some hundred iterations, let in for as many, and
so on. Two processes differ in speed by more than plugins cost, and so do two minutes of one process on a machine that
others use too; blocks that follow each other differ least. Each block with plugins is compared with the two without
beside it. The plugins' threads work off what a second has left them, so more than two seconds after each change are
not measured: a block has neither work of the one before it nor leaves work of its own to the next.

The promise is about time. Processor time is printed as well, since other work on the machine changes it less: that of
the training thread, and that of the whole process, in which the work of the plugins' own threads counts as if the
training thread had to wait for it. These threads go on in the blocks without plugins, and have nothing to do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from measuring import Table, describe_machine, json_option, report
from ppo_hookline import cleanrl, larger

from hookline import PluginManager, hookimpl
from hookline.plugin_manager.settings import Settings
from hookline.session.opening import plugins_for_a_run
from hookline.training.tasks.task import Task
from hookline_hookspecs import TrainerState

FIVE = ("metrics", "checkpoint", "evaluation", "status", "verify-length", "verify-toxicity", "verify-coherence",
        "verify-factual")  # fmt: skip
"""The plugins of this repository; the verifiers are four."""
RUNS, BLOCKS, WARM = 5, 7, 200
"""The first evaluation, with its compilation, is among the iterations that warm up."""
EVALUATE_EVERY = 100
"""As by default in a run of 1000 iterations."""


class Setting(NamedTuple):
    task: Task
    settle: int
    """Iterations after a change that are not measured: more than two seconds."""
    measured: int
    """Iterations of a block: a multiple of those between two evaluations."""


SETTINGS = {
    "4 x 128 steps, 16 gradient steps (CleanRL's hyperparameters)": Setting(cleanrl, 200, 400),
    "64 x 64 steps, 24 gradient steps (`hookline train cartpole`)": Setting(larger, 100, 200),
}
SLOWER = 0.03


class Spent(NamedTuple):
    """Seconds."""

    time: float
    thread: float
    """Processor time of the training thread."""
    process: float

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.thread_time(), time.process_time())


class OnAndOff:
    """Takes the plugins out of the run and lets them in again, and measures each block."""

    def __init__(self, plugins: PluginManager, setting: Setting) -> None:
        self.blocks: list[tuple[bool, Spent]] = []
        """Whether the plugins were on, and what an iteration took."""
        self._plugins = plugins
        self._setting = setting
        self._taken_out: dict[str, object] = {}
        self._began = Spent.now()

    @hookimpl(trylast=True)
    def on_epoch_end(self, state: TrainerState) -> None:
        _, settle, measured = self._setting
        place, rest = divmod(state.epoch + 1 - WARM, settle + measured)
        if place < 0:
            return
        if rest == settle:
            self._began = Spent.now()
        if rest == 0:
            if place > 0:
                spent = zip(Spent.now(), self._began, strict=True)
                self.blocks.append((not self._taken_out, Spent(*((now - before) / measured for now, before in spent))))
            if place == BLOCKS:
                state.stop_reason = "all is measured"
            self._let_in(state) if self._taken_out else self._take_out()

    def _take_out(self) -> None:
        self._taken_out = {name: self._plugins.get_plugin(name) for name in FIVE}
        for name in FIVE:
            self._plugins.unregister(name=name)

    def _let_in(self, state: TrainerState) -> None:
        for name, plugin in self._taken_out.items():
            self._plugins.register(plugin, name)
            if name in ("checkpoint", "evaluation"):
                # They count from here, and do not make up for what was due meanwhile.
                plugin.pre_training(state=state, report_data={"start_epoch": state.epoch + 1})  # type: ignore[attr-defined]
        self._taken_out = {}


def measure(name: str, seed: int) -> None:
    """Print the blocks of one run as JSON."""
    setting = SETTINGS[name]
    settings = Settings(allowed=dict.fromkeys(FIVE, "the benchmark"))
    settings.set_option("evaluation", "every", EVALUATE_EVERY, "the benchmark")
    with tempfile.TemporaryDirectory() as folder, plugins_for_a_run(settings=settings) as plugins:
        epochs = WARM + (BLOCKS + 1) * (setting.settle + setting.measured)
        trainer = setting.task.trainer(plugins, epochs=epochs, run_dir=Path(folder, "run"), seed=seed)
        measured = OnAndOff(plugins, setting)
        trainer.add_hook(measured)
        trainer.train()
    print(json.dumps(measured.blocks))


def blocks_of_a_run(setting: str, seed: int) -> list[tuple[bool, Spent]]:
    result = subprocess.run(
        [sys.executable, __file__, setting, str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if result.returncode:
        raise RuntimeError(f"the run failed:\n{result.stderr}")
    return [(is_on, Spent(*spent)) for is_on, spent in json.loads(result.stdout.splitlines()[-1])]


def cost_of_plugins() -> Table:
    table = Table(
        "All five plugins on, beside none in the same run",
        "at most 3 % slower than none",
        ["iterations of", "without, ms", "slower by", "training thread", "process"],
    )
    for setting in SETTINGS:
        runs = [blocks_of_a_run(setting, seed) for seed in range(RUNS)]
        found: dict[str, tuple[float, float]] = {}
        for kind in Spent._fields:
            more = [
                getattr(here, kind) / statistics.mean((getattr(before, kind), getattr(after, kind))) - 1
                for blocks in runs
                for (_, before), (is_on, here), (_, after) in zip(blocks, blocks[1:], blocks[2:], strict=False)
                if is_on
            ]
            found[kind] = statistics.mean(more), statistics.stdev(more) / len(more) ** 0.5
        without = statistics.mean(spent.time for blocks in runs for is_on, spent in blocks if not is_on)
        kept = "" if found["time"][0] <= SLOWER else "  (promise not kept)"
        shown = {kind: f"{mean:.1%} ± {error:.1%}" for kind, (mean, error) in found.items()}
        cells = [setting, f"{1000 * without:.1f}", f"{shown['time']}{kept}", shown["thread"], shown["process"]]
        table.add(cells, settings=setting, runs=runs, more=found)
    table.remarks.append(
        f"Slower by, in time and in processor time: mean and standard error over {RUNS * (BLOCKS // 2)} blocks of "
        f"{RUNS} runs. Load of the machine at the end: {os.getloadavg()[1]:.1f}, of which this benchmark is about 1."
    )
    return table


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in SETTINGS:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        json_file = json_option(__doc__)
        report(describe_machine("torch", "jax"), [cost_of_plugins()], json_file)
