"""The source `ray`, on a cluster of several nodes on this machine, and on a Ray that it starts by itself."""

# ruff: noqa: E402

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason='pip install "hookline[jax]"')
pytest.importorskip("gymnasium")
from hookline_ray.connection import LOCAL, is_of_a_cluster

os.environ.update(LOCAL)  # the cluster of these tests is on loopback too
ray = pytest.importorskip("ray")

import gymnasium
import psutil

from hookline import PluginManager
from hookline.cli import main
from hookline.errors import ConfigError
from hookline.plugin_manager import open_plugins, read_settings
from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.errors import RolloutError
from hookline.rollout.sources import RolloutSource, SourceRequest
from hookline.testing import check_source
from hookline_hookspecs import hookimpl
from hookline_ray import RayPlugin
from hookline_ray.source import build_ray

pytestmark = pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")  # by the cluster of these tests

SECONDS = 600


@pytest.fixture(autouse=True)
def own_sigterm() -> Iterator[None]:
    """Ray's nodes and `ray.init` set a handler of SIGTERM. Other tests of this process need theirs."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with a node for workers, to which tests add others."""
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)
    head = {"num_cpus": 8, "resources": {"head": 8}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(cluster.address, logging_level="error", log_to_driver=False)
    signal.signal(signal.SIGTERM, handler)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Listener:
    """Keeps what is announced of workers."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.then: Callable[[], Any] = lambda: None

    @hookimpl
    def on_worker_lost(self, worker_index: int, reason: str) -> None:
        self.events.append((worker_index, reason))
        self.then()

    @hookimpl
    def on_worker_restarted(self, worker_index: int) -> None:
        self.events.append(worker_index)


@pytest.fixture
def listener(hookline_manager: PluginManager) -> Listener:
    listener = Listener()
    hookline_manager.register(listener)
    return listener


@pytest.fixture
def build(hookline_manager: PluginManager) -> Iterator[Callable[..., RolloutSource]]:
    """Builds a source of CartPole and publishes the first weights. It is closed in the end."""
    sources = []

    def build(
        environment: Any = "CartPole-v1", plugins: PluginManager = hookline_manager, **fields: Any
    ) -> RolloutSource:
        lessons = CurriculumConfig([Lesson("pole", environment)], micro_eval_frequency=None, eval_frequency=None)
        policy = MLPPolicy(4, Discrete(2), (8,))
        worker = RolloutWorker(RolloutWorkerConfig(lessons, policy, num_environments=2, steps_per_rollout=4), plugins)
        sources.append(build_ray(SourceRequest(worker, **fields)))
        sources[-1].publish(policy.initial_weights(0), 0)
        return sources[-1]

    yield build
    for source in sources:
        source.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def weights_of(source: Any) -> Any:
    return source._worker.policy.initial_weights(0)


# -- on a cluster -----------------------------------------------------------------------------------------------------


def test_it_keeps_the_contract_of_sources(cluster: Any) -> None:
    (build,) = RayPlugin().register_sources().values()
    check_source(build, workers=2)


def test_the_command_line_trains_with_it(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "run"
    sizes = {
        "num_environments": "4",
        "steps_per_rollout": "8",
        "minibatches": "2",
        "source_options": "{ resources = { head = 1 } }",
    }
    assignments = [part for name, value in sizes.items() for part in ("--set", f"rollout.{name}={value}")]
    arguments = ["--source", "ray", "--workers", "1", "--epochs", "2", "--run-dir", str(folder)]
    with pytest.raises(SystemExit) as ended:
        main(["train", "cartpole", *arguments, *assignments])
    assert ended.value.code == 0
    assert "2 epochs, 12 gradient steps" in capsys.readouterr().out
    assert json.loads((folder / "config.json").read_text())["trainer"]["rollout"]["source"] == "ray"


def test_a_worker_that_hangs_and_a_node_that_goes_away_are_replaced(
    cluster: Any, build: Callable[..., Any], listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    marker = tmp_path / "marker"

    class Hanging(gymnasium.Wrapper):
        """Hangs in a step, once, if a file says so."""

        def step(self, action: Any) -> Any:
            (tmp_path / f"played-{os.getpid()}").touch()
            with suppress(FileNotFoundError):
                marker.unlink()  # by one of the workers
                time.sleep(SECONDS)
            return self.env.step(action)

    node = cluster.add_node(num_cpus=2, resources={"spot": 2})
    options = {"num_cpus": 0.5, "resources": {"spot": 1}}
    environment = lambda: Hanging(gymnasium.make("CartPole-v1"))  # noqa: E731
    source = build(environment, workers=2, max_staleness=0, options=options)
    while len(list(tmp_path.glob("played-*"))) < 2:  # what they play first is compiled, which takes long
        source.next(4)
    hung = source.pids()
    marker.touch()
    source._driver._deadline = 5.0
    listener.then = lambda: setattr(source._driver, "_deadline", float(SECONDS))
    while len(listener.events) < 2:
        source.next(4)
    (worker, reason), restarted = listener.events
    assert (reason, restarted) == ("no answer in 5 s", worker)
    wait_until(lambda: not psutil.pid_exists(hung[worker]))

    class NodeKiller:
        @hookimpl
        def on_rollout_end(self) -> None:
            source._worker.plugins.unregister(self)
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=2, resources={"spot": 2})

    doomed = source.pids()
    listener.events.clear()
    source._worker.plugins.register(NodeKiller())
    for version in itertools.count(1):
        source.publish(weights_of(source), version)
        assert [rollout.weights_version for rollout in source.next(8)] == [version] * 8
        if len(listener.events) >= 4:
            break
    assert sorted(own for own in listener.events if isinstance(own, int)) == [0, 1]
    assert not set(doomed) & set(source.pids())
    assert len(puts) == 1 + version + 1, "what the players are made of, and each version once, for all workers"
    assert source.state_dict()["next_number"] == source._worker.step, "each rollout was taken once"


PLUGIN = """
import os
from hookline_hookspecs import hookimpl

class Plugin:
    versions = 0

    @hookimpl
    def on_weights_updated(self):
        self.versions += 1

    @hookimpl
    def collect_metrics(self):
        return {"mine/versions": float(self.versions), "mine/process": float(os.getpid())}

    @hookimpl(scope="driver")
    def on_worker_start(self):
        raise AssertionError("only in the trainer")
"""


def test_plugins_run_in_workers_their_numbers_come_back_as_deltas_and_max_restarts_is_a_limit(
    cluster: Any, build: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    info = tmp_path / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hookline]\nmine = mine:Plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    with open_plugins(settings=read_settings(tmp_path, environ={"HOOKLINE_ALLOW": "mine"})) as plugins:
        # Not on a node that another test has killed, before Ray knows.
        options = {"max_restarts": 0, "scheduling_strategy": "SPREAD", "resources": {"head": 1}}
        source = build(plugins=plugins, workers=2, max_staleness=0, options=options)
        tracker = source._worker.tracker
        while {"worker/0/mine/process", "worker/1/mine/process"} - set(tracker.latest):
            source.next(4)
        assert [tracker.latest[f"worker/{index}/mine/process"] for index in (0, 1)] == source.pids()
        assert tracker.latest["worker/0/mine/versions"] == 1.0
        told = [entry for entry in tracker.entries if "worker/0/mine/process" in entry.metrics]
        assert len(told) == 1, "a number that has not changed is not sent again"
        os.kill(source.pids()[1], signal.SIGKILL)
        message = r"worker 1 was lost 1 times, and rollout\.source_options\.max_restarts is 0"
        with pytest.raises(RolloutError, match=message):
            source.next(1000)


def test_two_ranks_under_torchrun_have_a_ray_worker_each(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "program.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OUT": str(tmp_path), "RAY_ADDRESS": cluster.address}
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environ)
    assert result.returncode == 0, result.stdout + result.stderr
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert len({*first["pids"], *second["pids"]}) == 2
    assert first["cluster"] == second["cluster"] == cluster.address
    assert first["weights"] == second["weights"]
    assert first["obs"] != second["obs"]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in first["pids"] + second["pids"]))


RANKS = """
import json, os
from pathlib import Path
from hookline import PluginManager, hookimpl
from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline_ray import RayPlugin

class Watch:
    pids = []
    @hookimpl
    def on_epoch_end(self, state):
        Watch.pids = trainer.source.pids()

rank = int(os.environ["RANK"])
plugins = PluginManager(rank=rank)
plugins.register(RayPlugin())
plugins.register(Watch())
sizes = RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=1, source="ray", workers=2)
lessons = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None)
trainer = Trainer(TrainerConfig(epochs=3, rollout=sizes), lessons, MLPPolicy(4, Discrete(2), hidden=(8,)), plugins=plugins)
trainer.train()
import ray
found = {"pids": Watch.pids, "cluster": ray.get_runtime_context().gcs_address, "obs": trainer.state.experience["obs"].tolist(),
         "weights": {k: v.tolist() for k, v in trainer.policy.state_dict().items()}}
(Path(os.environ["OUT"]) / f"rank-{rank}.json").write_text(json.dumps(found))
"""


# -- on a Ray of its own ----------------------------------------------------------------------------------------------

OWN_RAY = """
from hookline import PluginManager, hookimpl
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline.rollout import CurriculumConfig
from hookline_ray import RayPlugin

class Watch:
    @hookimpl
    def on_epoch_end(self, state):
        print(*trainer.source.pids(), flush=True)

plugins = PluginManager()
plugins.register(RayPlugin())
plugins.register(Watch())
sizes = RolloutConfig(4, 8, minibatches=2, update_epochs=1, source="ray",
                      source_options={"num_cpus": 1000})  # more than there are
trainer = Trainer(TrainerConfig(100000, rollout=sizes), CurriculumConfig(eval_frequency=None, micro_eval_frequency=None), plugins=plugins)
trainer.train()
"""


def test_a_ray_of_its_own_is_on_loopback_without_a_dashboard_and_ends_with_a_killed_trainer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "run.py").write_text(OWN_RAY)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with (
        (tmp_path / "stderr").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, str(tmp_path / "run.py")], stdout=subprocess.PIPE, stderr=errors, text=True, env=environ
        ) as trainer,
    ):
        assert trainer.stdout is not None
        line = trainer.stdout.readline().split()
        assert line, (tmp_path / "stderr").read_text()
        processes = {process: process.name() for process in psutil.Process(trainer.pid).children(recursive=True)}
        listening = [
            connection.laddr
            for process in (psutil.Process(trainer.pid), *processes)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        trainer.kill()
    assert {int(pid) for pid in line} <= {process.pid for process in processes}
    assert {own.ip.removeprefix("::ffff:") for own in listening} == {"127.0.0.1"}
    assert 8265 not in {own.port for own in listening}, "the port of the dashboard"
    # Two agents of Ray look for the others once a minute, and then end too.
    ending = [process for process, name in processes.items() if not name.endswith("Agent")]
    assert len(ending) >= 4
    wait_until(lambda: not any(process.is_running() for process in ending))


@pytest.mark.parametrize(
    ("address", "expected"), [("", False), ("local", False), ("auto", True), ("10.0.0.1:6379", True)]
)
def test_the_address_local_is_a_ray_of_its_own_as_no_address_is(address: str, *, expected: bool) -> None:
    assert is_of_a_cluster(address) is expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_cpu": 1}, r"rollout.source_options.num_cpu: unknown key 'num_cpu' \(did you mean 'num_cpus'\?\)"),
        ({"resources": {"spot": -1}, "scheduling_strategy": "PACK"}, r"(?s)resources.spot: .*scheduling_strategy: "),
    ],
)
def test_options_that_make_no_sense_are_errors_before_anything_starts(
    hookline_manager: PluginManager, options: dict[str, Any], message: str
) -> None:
    worker = RolloutWorker(RolloutWorkerConfig(CurriculumConfig([Lesson("cartpole")])), hookline_manager)
    with pytest.raises(ConfigError, match=message):
        build_ray(SourceRequest(worker, options=options))
