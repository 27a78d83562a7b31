"""Use of CPU, memory, disk, and NVIDIA GPUs if there are any."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["SystemMonitor"]

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
