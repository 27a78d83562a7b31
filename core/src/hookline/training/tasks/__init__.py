"""Tasks: the named runs of `hookline train`.

A task is a function that builds a trainer, with its default config:

    @task(epochs=20, optimizer=OptimizerConfig(learning_rate=3e-4))
    def maze(config: TrainerConfig, plugins: PluginManager) -> Trainer:
        return Trainer(config, CurriculumConfig([Lesson("maze", make_maze)]), plugins=plugins)

`hookline train path/to/file.py:maze` runs a task in a file. A plugin adds tasks with `register_tasks`.
"""

from hookline.training.tasks.registry import find_task
from hookline.training.tasks.task import Task, task

__all__ = ["Task", "find_task", "task"]
