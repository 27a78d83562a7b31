"""`check_environment`: the checks that every environment of a plugin should pass."""

from __future__ import annotations

from typing import Any, Final

from hookline.importing import require
from hookline.plugin_manager.construction import make_plugin
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline_hookspecs import Rollout

__all__ = ["check_environment"]

NAME: Final = "checked-plugin"
ENVIRONMENTS: Final = 3
STEPS: Final = 32
ROLLOUTS: Final = 2


def check_environment(target: Any, **options: Any) -> None:
    """Play every environment that a plugin registers, twice with the same seed. Raises an error on a fault.

    The default policy plays three of each for two rollouts. The rollout worker raises a `LessonError` for observations,
    actions and rewards that do not fit.

    :param target: the object of the plugin's entry point: its class, a factory function, or a module.
    :param options: the plugin's options, as in the user's config.
    """
    require("jax", "check_environment")
    with PluginManager() as manager:
        plugin = make_plugin(NAME, target, options, manager)
        manager.register(plugin, NAME, overrides=Overrides(on_error="raise"))
        registered = collect_registered(manager, "register_environments", "an environment")
        assert registered, "register_environments returns no environment"
        for name in registered:
            _check_same(name, _play(name, manager), _play(name, manager))


def _play(name: str, manager: PluginManager) -> list[Rollout]:
    lessons = CurriculumConfig([Lesson(name, name)], micro_eval_frequency=None, eval_frequency=None)
    config = RolloutWorkerConfig(lessons, num_environments=ENVIRONMENTS, steps_per_rollout=STEPS, seed=7)
    with RolloutWorker(config, manager) as worker:
        return [worker.rollout() for _ in range(ROLLOUTS)]


def _check_same(name: str, first: list[Rollout], second: list[Rollout]) -> None:
    np = require("numpy", "check_environment")
    for one, other in zip(first, second, strict=True):
        for array, values in one.arrays.items():
            assert np.array_equal(np.asarray(values), np.asarray(other.arrays[array])), (
                f"environment {name!r} gives other {array} with the same seed: "
                "take all random numbers from the seed of reset, or from the key"
            )
        assert [(own.response, own.reward) for own in one.episodes] == [
            (own.response, own.reward) for own in other.episodes
        ], f"environment {name!r} gives other episodes with the same seed"
