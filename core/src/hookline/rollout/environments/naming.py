"""Finds an environment by name: Hookline's own, then plugins', then Gymnasium's, then gymnax's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from hookline.errors import did_you_mean
from hookline.rollout.environments.cartpole import CARTPOLE
from hookline.rollout.environments.gymnasium_env import Factory, factory_of, gymnasium_names
from hookline.rollout.environments.jax_environment import JaxEnvironment, gymnax_environment, gymnax_names
from hookline.rollout.errors import UnknownEnvironmentError

__all__ = ["find_environment"]

NATIVE = {CARTPOLE.name: CARTPOLE}


def find_environment(name: str, registered: Mapping[str, Any] | None = None) -> JaxEnvironment | Factory | Any:
    """The environment of this name.

    `gymnax:NAME` and `gymnasium:ID` name the source. Other names are looked up in the order above, so their meaning
    does not depend on whether gymnax is installed.

    :param registered: environments by name, from the plugins' `register_environments`.
    """
    source, _, rest = name.partition(":")
    if source == "gymnax":
        return gymnax_environment(rest)
    if source == "gymnasium":
        return factory_of(rest)
    if name in NATIVE:
        return NATIVE[name]
    if registered and name in registered:
        return registered[name]
    has_gymnax = importlib.util.find_spec("gymnax") is not None
    finders: list[tuple[Callable[[], list[str]], Callable[[str], Any]]] = [(gymnasium_names, factory_of)]
    if has_gymnax:
        finders.append((gymnax_names, gymnax_environment))
    known = [*NATIVE, *(registered or ())]
    for names, find in finders:
        if name in names():
            return find(name)
        known += names()
    if source != name:
        return factory_of(name)  # Gymnasium's `module:ID`, where importing the module registers the id
    missing = "" if has_gymnax else '; for gymnax\'s, pip install "hookline[gymnax]"'
    raise UnknownEnvironmentError(f"there is no environment {name!r}{did_you_mean(name, known)}{missing}")
