"""What the plugin measures by itself: the time of each phase, lessons, gradients, and the machine."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

__all__ = ["PHASES", "LessonMetrics", "Phase", "PhaseTimer", "SystemMonitor", "gradient_statistics"]

# -- time -------------------------------------------------------------------------------------------------------------

Phase = Literal["rollout", "train", "validation", "evaluation", "checkpoint", "other"]
PHASES: Final[tuple[Phase, ...]] = ("rollout", "train", "validation", "evaluation", "checkpoint", "other")
TIME_NAMES: Final = tuple(f"time/{phase}" for phase in PHASES)
SHARE_NAMES: Final = tuple(f"time/{phase}_share" for phase in PHASES)


class PhaseTimer:
    """Adds up the seconds of each phase. Phases can be nested, and time counts for the innermost.

    `at` is a time in seconds, by the clock of `began`.
    """

    def __init__(self, began: float) -> None:
        self._open: list[Phase] = []
        self._since = began
        self._seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._counts: tuple[int, int] | None = None
        self._has_trained = False

    @property
    def current(self) -> Phase:
        return self._open[-1] if self._open else "other"

    def enter(self, phase: Phase, at: float) -> None:
        """Start a phase. Entering it twice still needs only one `leave`."""
        self.leave(phase, at)
        self._open.append(phase)
        self._has_trained = self._has_trained or phase == "train"

    def leave(self, phase: Phase, at: float) -> None:
        """End a phase, and all phases inside it that were not ended."""
        self._add_up(at)
        if phase in self._open:
            del self._open[self._open.index(phase) :]

    def leave_all(self, at: float) -> None:
        self._add_up(at)
        self._open.clear()

    def _add_up(self, at: float) -> None:
        self._seconds[self.current] += at - self._since
        self._since = at

    def restart(self, step: int, agent_step: int, at: float) -> None:
        """Start to measure at these counts."""
        self.leave_all(at)
        self._take(step, agent_step)

    def numbers(self, step: int, agent_step: int, at: float) -> dict[str, float]:
        """Seconds and share of each phase since the last call, and the rates of steps and agent steps."""
        self._add_up(at)
        before = self._counts
        has_trained = self._has_trained
        seconds = self._take(step, agent_step)
        if before is None:
            return {}
        steps, agent_steps = step - before[0], agent_step - before[1]
        if steps and not has_trained:
            # A loop that emits steps but no phases: count its time as training.
            seconds["train"], seconds["other"] = seconds["train"] + seconds["other"], 0.0
        total = sum(seconds.values())
        if total <= 0:
            return {}
        # Phases with no time too, so that a killed and resumed run has the same rows as one that was never killed.
        numbers = dict(zip(TIME_NAMES, seconds.values(), strict=True))
        numbers |= dict(zip(SHARE_NAMES, [spent / total for spent in seconds.values()], strict=True))
        numbers["rate/steps_per_second"] = steps / total
        if agent_steps:
            numbers["rate/agent_steps_per_second"] = agent_steps / total
        return numbers

    def _take(self, step: int, agent_step: int) -> dict[Phase, float]:
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        self._counts, self._has_trained = (step, agent_step), False
        return seconds


# -- lessons ----------------------------------------------------------------------------------------------------------


class LessonMetrics:
    """Metrics of a curriculum's lessons. Remembers which are unlocked: one that has a rollout counts as unlocked.

    `curriculum/<lesson>/unlocked` and `/graduated` are 1 at the step where that happened. After each rollout,
    `/success` is the moving average of success in training and `/reward` the mean reward.
    """

    def __init__(self) -> None:
        self.unlocked: set[str] = set()

    def after_rollout(
        self, lesson: str | None, performance: float | None, stats: Mapping[str, float]
    ) -> dict[str, float]:
        if lesson is None:
            return {}
        numbers = {}
        if lesson not in self.unlocked:
            self.unlocked.add(lesson)
            numbers[f"curriculum/{lesson}/unlocked"] = 1.0
        if performance is not None:
            numbers[f"curriculum/{lesson}/success"] = performance
        if "mean_reward" in stats:
            numbers[f"curriculum/{lesson}/reward"] = stats["mean_reward"]
        return numbers

    def after_update(self, changes: Mapping[str, Any]) -> dict[str, float]:
        self.unlocked.update(lesson for lesson, change in changes.items() if change == "unlocked")
        return {f"curriculum/{lesson}/{change}": 1.0 for lesson, change in changes.items()}


# -- gradients --------------------------------------------------------------------------------------------------------


def gradient_statistics(policy: Any) -> dict[str, float]:
    """`gradients/norm`, and `gradients/<module>/norm` and `/variance`; empty for a policy that has no gradients.

    The policy is anything with `named_parameters()` whose parameters have a `grad`, such as a torch module. Call it
    at the end of a minibatch, after clipping, to measure the gradients that the optimizer sees.

    Empty as well for a policy in shards (FSDP2): rank 0 has a part of each gradient, and cannot ask the others here.
    """
    named_parameters = getattr(policy, "named_parameters", None)
    if not callable(named_parameters):
        return {}
    # The sums stay tensors until the end, since `float()` of a GPU tensor waits for the GPU.
    sums: dict[str, list[tuple[int, Any, Any]]] = {}
    for name, parameter in named_parameters():
        gradient = getattr(parameter, "grad", None)
        if hasattr(gradient, "full_tensor"):
            return {}
        if gradient is not None:
            own = math.prod(gradient.shape), gradient.sum(), (gradient * gradient).sum()
            sums.setdefault(name.rpartition(".")[0] or name, []).append(own)
    statistics: dict[str, float] = {}
    total = 0.0
    for module, found in sums.items():
        count, values, squares = (sum(map(float, column)) for column in zip(*found, strict=True))
        total += squares
        statistics[f"gradients/{module}/norm"] = math.sqrt(squares)
        statistics[f"gradients/{module}/variance"] = max(0.0, squares / count - (values / count) ** 2)
    if statistics:
        statistics["gradients/norm"] = math.sqrt(total)
    return statistics


# -- the machine ------------------------------------------------------------------------------------------------------

MEGABYTE: Final = 2**20
GPU_QUERY: Final = ("--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
GPU_SECONDS: Final = 5.0


class SystemMonitor:
    """Measures the machine. A measurement takes milliseconds, so do it off the training thread.

    :param folder: the run's folder. The disk that it is on is measured.
    """

    def __init__(self, folder: Path) -> None:
        import psutil

        self._psutil = psutil
        self._process = psutil.Process()
        self._folder = folder
        self._nvidia_smi = shutil.which("nvidia-smi")
        # psutil measures CPU time since the previous call, so the first call always returns 0.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def numbers(self) -> dict[str, float]:
        """Metrics by name. `process_cpu_percent` is relative to one core, all other percentages to the machine."""
        memory = self._psutil.virtual_memory()
        numbers = {
            "system/cpu_percent": self._psutil.cpu_percent(),
            "system/memory_percent": memory.percent,
            "system/process_cpu_percent": self._process.cpu_percent(),
            "system/process_memory_mb": self._process.memory_info().rss / MEGABYTE,
        }
        if self._folder.exists():
            disk = self._psutil.disk_usage(str(self._folder))
            numbers |= {"system/disk_percent": disk.percent, "system/disk_free_mb": disk.free / MEGABYTE}
        return numbers | self._gpus()

    def _gpus(self) -> dict[str, float]:
        if self._nvidia_smi is None:
            return {}
        try:
            result = subprocess.run(
                [self._nvidia_smi, *GPU_QUERY], capture_output=True, text=True, timeout=GPU_SECONDS, check=True
            )
            lines = [[float(cell) for cell in line.split(",")] for line in result.stdout.splitlines() if line]
        except (OSError, subprocess.SubprocessError, ValueError):
            self._nvidia_smi = None  # a driver that fails once is not tried again
            return {}
        return {
            f"system/gpu{index}/{name}": value
            for index, (busy, used, total) in enumerate(lines)
            for name, value in (("percent", busy), ("memory_mb", used), ("memory_percent", 100 * used / total))
        }
