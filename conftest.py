"""For all tests of the repository."""

import os
import signal
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest
from hypothesis import HealthCheck, settings

from hookline_hookspecs.redaction import forget_secrets

# No test is judged by the clock: on a busy machine any example may take long. Each run has other examples, so that few
# of them add up to many. `pytest --hypothesis-profile thorough` has many at once.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30)
settings.register_profile("thorough", settings.get_profile("unhurried"), max_examples=500)
settings.load_profile("unhurried")

# A job that is started in the background has Ctrl-C ignored, and so have all processes that it starts. Tests that
# interrupt a process mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same of a hang-up, which nohup ignores.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The models of the tests are so small that a second thread only costs time, and each worker has a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests compile much and compute little. With these, a compilation takes a third of its processor time.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

# Trackers are on by their install, and here all are installed. Only their own tests turn them on.
TRACKERS = {"mlflow", "tensorboard", "trackio", "wandb"} & entry_points(group="hookline").names
os.environ.setdefault("HOOKLINE_DISABLE", ",".join(sorted(TRACKERS)))


def pytest_configure(config: pytest.Config) -> None:
    """Keep what JAX compiles beside pytest's own cache, for all workers and the processes that tests start."""
    if config.pluginmanager.has_plugin("cacheprovider"):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """What one test calls a secret is an ordinary word in another."""
    yield
    forget_secrets()
