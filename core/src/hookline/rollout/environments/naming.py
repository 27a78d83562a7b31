"""Finds an environment by its name: one of Hookline's own, or of a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookline.errors import HooklineError, did_you_mean
from hookline.rollout.environments.cartpole import CARTPOLE
from hookline.rollout.environments.outcomes import STOPS, raised
from hookline.rollout.errors import RolloutError, UnknownEnvironmentError

__all__ = ["find_environment"]

OWN: Final = {CARTPOLE.name: CARTPOLE}

DISTRIBUTIONS: Final = dict.fromkeys(
    ("gymnasium:", "gymnax:", "openenv:", "process:", "reasoning-gym:", "verifiers:"), "hookline-environments"
)
"""Families of environments that a distribution of ours has."""


def find_environment(name: str, options: Mapping[str, Any], registered: Mapping[str, Any]) -> Any:
    """The environment of this name.

    :param options: options of a family's environment.
    :param registered: from the plugins' `register_environments`: environments by name, and families of environments,
        whose names end with a colon. A family is a function of what follows the colon and of the options.
    """
    known = {**OWN, **registered}
    source, colon, rest = name.partition(":")
    family = known.get(source + colon) if rest else None
    if family is not None:
        return _make(name, family, rest, options)
    if name.endswith(":") and name in known:
        raise UnknownEnvironmentError(f"environment {name!r} needs a name after the colon")
    if name not in known:
        raise UnknownEnvironmentError(f"there is no environment {name!r}{_hint(name, source + colon, list(known))}")
    if options:
        raise RolloutError(f"environment {name!r} has no options, but the lesson gives {', '.join(options)}")
    return known[name]


def _make(name: str, family: Callable[..., Any], rest: str, options: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(family).parameters
    takes = [own.name for own in parameters.values() if own.kind is own.KEYWORD_ONLY]
    if not any(own.kind is own.VAR_KEYWORD for own in parameters.values()):
        for option in options:
            if option not in takes:
                hint = did_you_mean(option, takes) or f"; known are {', '.join(takes) or 'none'}"
                raise RolloutError(f"environment {name!r} has no option {option!r}{hint}")
    try:
        return family(rest, **options)
    except (HooklineError, *STOPS):
        raise
    except BaseException as error:
        raise raised(f"environment {name!r}", error) from error


def _hint(name: str, family: str, known: list[str]) -> str:
    if family in DISTRIBUTIONS and family not in known:
        return (
            f": names that begin with {family!r} are those of a plugin that is not active. pip install "
            f"{DISTRIBUTIONS[family]}. The installed plugins are active in `hookline train` and hookline.train; to a "
            "worker or trainer of your own, pass plugins"
        )
    return did_you_mean(name, known) or f"; known are {', '.join(known)}. Environments of Gymnasium are gymnasium:ID"
