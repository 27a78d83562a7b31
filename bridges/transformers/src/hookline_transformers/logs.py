"""The numbers that a trainer logs, by the names that Hookline's plugins know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["evaluation_prefix", "is_summary", "training_numbers", "validation_numbers"]

RUNTIME: Final = "_runtime"


def is_summary(logs: Mapping[str, Any]) -> bool:
    """Whether these are the numbers of a whole training, which come at its end."""
    return "total_flos" in logs


def evaluation_prefix(logs: Mapping[str, Any]) -> str | None:
    """What the names of an evaluation's numbers begin with, such as `eval`; None for numbers of training.

    Every evaluation says how long it took. So may training, by `train_runtime`.
    """
    timed = [name.removesuffix(RUNTIME) for name in logs if name.endswith(RUNTIME) and name != f"train{RUNTIME}"]
    return timed[0] if timed else None


def training_numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """`loss` is `train/loss`, and `rewards/chosen` is `train/rewards/chosen`."""
    kind = "summary" if is_summary(logs) else "train"
    return {f"{kind}/{name}": value for name, value in _numbers(logs).items()}


def validation_numbers(metrics: Mapping[str, Any], prefix: str) -> tuple[float, dict[str, float]]:
    """The loss, NaN where none was computed, and all numbers: `eval_accuracy` is `val/accuracy`.

    Where there are several datasets, `eval_<dataset>_loss` is the loss of the one, and `val/<dataset>_loss` among all.
    """
    numbers = _numbers(metrics)
    loss = numbers.get(f"{prefix}_loss", float("nan"))
    return loss, {f"val/{name.removeprefix('eval_')}": value for name, value in numbers.items()}


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Without the trainer's epoch, which is a fraction, and what TRL found nothing to compute from."""
    return {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "epoch"
    }
