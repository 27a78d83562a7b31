"""`gymnasium:ID`: any environment of Gymnasium's registry."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hookline.errors import did_you_mean
from hookline.importing import require
from hookline.rollout.errors import UnknownEnvironmentError

__all__ = ["gymnasium_environment"]


def gymnasium_environment(environment_id: str, **options: Any) -> Callable[[], Any]:
    """A function that makes the environment.

    :param environment_id: an id, or `module:ID`, where importing the module registers the id.
    :param options: of `gymnasium.make`, such as `render_mode="rgb_array"`, and of the environment itself.
    """
    purpose = f"environment 'gymnasium:{environment_id}'"
    gymnasium = require("gymnasium", purpose, "gymnasium", "hookline-environments")
    module, _, name = environment_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        gymnasium.spec(name)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        nearest = did_you_mean(environment_id, gymnasium.registry)
        raise UnknownEnvironmentError(f"Gymnasium has no environment {environment_id!r}{nearest}: {error}") from error
    return lambda: gymnasium.make(name, **options)
