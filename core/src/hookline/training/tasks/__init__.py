"""Tasks: what `hookline train` trains, by name.

A task is a function that makes a trainer, and the config that it suits:

    @task(epochs=20, optimizer=OptimizerConfig(learning_rate=3e-4))
    def maze(config: TrainerConfig, plugins: PluginManager) -> Trainer:
        return Trainer(config, CurriculumConfig([Lesson("maze", make_maze)]), plugins=plugins)

`hookline train path/to/file.py:maze` finds it in a file; a plugin brings more by `register_tasks`.
"""

from hookline.training.tasks.registry import find_task
from hookline.training.tasks.task import Task, task

__all__ = ["Task", "find_task", "task"]
