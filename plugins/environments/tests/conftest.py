"""A plugin manager with the environments, and a worker for one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookline import PluginManager
from hookline_environments import Environments


@pytest.fixture
def plugins() -> PluginManager:
    manager = PluginManager()
    manager.register(Environments(), "environments")
    return manager


@pytest.fixture
def worker_for(plugins: PluginManager) -> Iterator[Callable[..., Any]]:
    """Makes a worker for an environment's name and options. `lesson` has further fields of the lesson."""
    pytest.importorskip("jax", reason='pip install "hookline[jax]"')
    from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig

    workers = []

    def make(
        name: str, lesson: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        lessons = [Lesson("l", name, options=options, **(lesson or {}))]
        curriculum = CurriculumConfig(lessons, eval_frequency=None, micro_eval_frequency=None)
        sizes = {"num_environments": 2, "steps_per_rollout": 16, **(config or {})}
        workers.append(RolloutWorker(RolloutWorkerConfig(curriculum, **sizes), plugins))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()
