"""Connects this process to Ray: to the cluster of `RAY_ADDRESS`, or to a Ray that is started here.

A Ray that is started here has no dashboard and listens on loopback alone. It ends with this process, however that ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from hookline.rollout.errors import RolloutError

__all__ = ["connect"]

LOCAL: Final = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a cluster of one node, which is then on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # the trainer waits for its workers
}
"""What a Ray that is started here reads from the environment. It reads the first when it is imported."""


_is_own = False
"""Whether the Ray of this process was started here."""


def connect() -> bool:
    """Connect to Ray, unless this process is connected. Returns whether that Ray was started here."""
    global _is_own
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        connected: Future[None] = Future()
        is_own = not is_of_a_cluster(os.environ.get("RAY_ADDRESS", ""))
        connect = _start if is_own else _init
        threading.Thread(target=_hold, args=(connect, connected), name="hookline-ray", daemon=True).start()
        connected.result()
        _is_own = is_own
    return _is_own


def is_of_a_cluster(address: str) -> bool:
    """Whether Ray would connect to a cluster of this address. It would start its own for `local`."""
    return address not in ("", "local")


def _hold(connect: Callable[[], Any], connected: Future[None]) -> None:
    """Connect in a thread that stays.

    Linux ends what Ray starts together with the thread that started it. And only in the main thread does Ray replace
    the handler of SIGTERM, by which a run ends as it should.
    """
    try:
        with warnings.catch_warnings():
            # JAX warns of forks, but Ray's children run another program at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            connect()
    except BaseException as error:
        connected.set_exception(error)
    else:
        connected.set_result(None)
        threading.Event().wait()


def _start() -> None:
    for name, value in LOCAL.items():
        os.environ.setdefault(name, value)
    ray = _init(address="local", include_dashboard=False)
    node = ray.util.get_node_ip_address()
    if node != "127.0.0.1":
        ray.shutdown()
        raise RolloutError(
            f"Ray was imported before the source 'ray' could set it up, and would listen on {node}: set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 to have it on loopback, or call ray.init() before the training"
        )


def _init(**options: Any) -> Any:
    import ray

    ray.init(logging_level=logging.ERROR, **options)  # it warns of the thread, and that it uses tokens
    return ray
