"""What JAX compiles for these tests is kept beside pytest's own cache, so that the second run does not compile."""

from __future__ import annotations

import jax
import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
