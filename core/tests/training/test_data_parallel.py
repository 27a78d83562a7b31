"""Two ranks under torchrun, as real processes: the same curve as one, hooks where they belong, and no rank left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hookline.training.errors import DatasetError
from hookline.training.ranks import Ranks
from hookline.training.supervised_loop import Batches

SUPERVISED = """
import json, os, sys
from pathlib import Path
from hookline import hookimpl
from hookline.policies import TransformerPolicy
from hookline.training import LearnerConfig, SupervisedConfig, Trainer, TrainerConfig

EXAMPLES = [{"tokens": [2 + (i * k) % 7 for k in range(3 + i % 3)]} for i in range(1, 10)]

def build(kind, **config):
    policy = TransformerPolicy(vocabulary=10, width=16, layers=2, heads=2, context=8)
    # Nine examples in batches of four: the last batch leaves nothing for the second rank; nor does the last of five.
    supervised = SupervisedConfig(batch_size=4, validate_every=2, validate_at_start=True)
    learner = LearnerConfig(data_parallel=kind, micro_batch_rows=1)
    config = TrainerConfig(epochs=2, supervised=supervised, losses={"sft": {}, "kl": {}}, learner=learner, **config)
    config.optimizer.learning_rate = 0.01
    return Trainer(config, policy=policy, dataset=EXAMPLES, validation_dataset=EXAMPLES[:5])
"""


def run(tmp_path: Path, program: str, *arguments: str, ranks: int, expect_failure: bool = False) -> str:
    """Run a program, under torchrun when it is for several ranks, and return what it printed."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OUT": str(tmp_path)}
    command = [sys.executable, *torchrun, str(script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environ)
    output = result.stdout + result.stderr
    assert (result.returncode != 0) is expect_failure, output
    return output


def run_alone(tmp_path: Path, program: str, *arguments: str, ranks: int) -> list[int]:
    """Run a program as several ranks without torchrun, which ends all ranks when one has died. Returns exit statuses."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OUT": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, str(script), *arguments], env={**os.environ, **shared, "RANK": str(rank)})
        for rank in range(ranks)
    ]
    return [process.wait(500) for process in processes]


def read(tmp_path: Path, name: str) -> Any:
    return json.loads((tmp_path / name).read_text())


CURVE = (
    SUPERVISED
    + """
class Curve:
    def __init__(self): self.points = []
    @hookimpl
    def post_training_step(self, report_data): self.points.append(report_data["train/loss"])
    @hookimpl
    def post_validation_step(self, report_data): self.points.append(report_data["val_score"])
    @hookimpl
    def post_validation(self, report_data): self.points.append(report_data["val_avg_loss"])

class OnTheDriver:
    calls = 0
    @hookimpl(scope="driver")
    def on_epoch_end(self): self.calls += 1
    @hookimpl
    def log_metrics(self): self.calls += 1

class Everywhere:
    calls = 0
    @hookimpl
    def on_epoch_end(self): self.calls += 1

found = {}
for kind in sys.argv[1:]:
    trainer, hooks = build(kind), (Curve(), OnTheDriver(), Everywhere())
    for hook in hooks:
        trainer.add_hook(hook)
    trainer.train()
    found[kind] = {
        "threads": [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")],  # if there is a /proc
        "curve": hooks[0].points,
        "weights": {k: v.tolist() for k, v in trainer.policy.state_dict().items()},
        "driver": hooks[1].calls,
        "everywhere": hooks[2].calls,
    }
(Path(os.environ["OUT"]) / f"rank-{trainer.state.rank}-of-{trainer.state.world_size}.json").write_text(json.dumps(found))
"""
)


def test_two_ranks_with_half_the_batch_each_have_the_curve_of_one(tmp_path: Path) -> None:
    run(tmp_path, CURVE, "ddp", ranks=1)
    run(tmp_path, CURVE, "ddp", "fsdp2", ranks=2)
    one = read(tmp_path, "rank-0-of-1.json")["ddp"]
    assert len(one["curve"]) == 6 + 4 * 3  # steps, and the two batches and the mean of four validations
    both = read(tmp_path, "rank-0-of-2.json"), read(tmp_path, "rank-1-of-2.json")
    for kind in ("ddp", "fsdp2"):
        first, second = (rank[kind] for rank in both)
        assert first["curve"] == pytest.approx(one["curve"], abs=1e-5)
        assert second["curve"] == first["curve"]
        assert second["weights"] == first["weights"]
        for name, values in one["weights"].items():
            assert _flat(first["weights"][name]) == pytest.approx(_flat(values), abs=1e-4)
        assert (first["driver"], second["driver"]) == (2 + 6 + 4, 0)
        assert (first["everywhere"], second["everywhere"]) == (2, 2)
        # A thread of gloo's that outlives the run can abort the process, when the interpreter is gone before it is.
        # Weights in shards keep the group, and with it the threads.
        assert kind == "fsdp2" or not [name for name in first["threads"] + second["threads"] if "gloo" in name]


def _flat(values: Any) -> list[float]:
    return [number for value in values for number in _flat(value)] if isinstance(values, list) else [values]


SHARDS = """
import copy, json, os
from pathlib import Path
import torch
from hookline import PluginManager
from hookline.policies import Continuous, MLPPolicy
from hookline.training import LearnerConfig, OptimizerConfig
from hookline.training.errors import TrainingError
from hookline.training.learner import Learner
from hookline.training.losses.registry import build_losses
from hookline.training.ranks import Ranks, join_ranks
from hookline_hookspecs import TrainerState

ranks = join_ranks(60)
generator = torch.Generator().manual_seed(0)
ALL = {name: torch.randn(7, generator=generator) for name in ("advantages", "returns", "values", "logprobs")}
ALL |= {"obs": torch.randn(7, 3, generator=generator), "actions": torch.randn(7, 2, generator=generator)}
# Three parts of two rows at most on one rank, and one on the other. Then nothing on the first.
OWN = [[slice(0, 5), slice(5, 7)], [None, slice(0, 7)]]

def learner_of(ranks, optimizer="adamw"):
    policy = MLPPolicy(3, Continuous(2), (5,))
    losses = build_losses({"ppo_actor": {"normalize_advantages": False}, "ppo_critic": {}}, PluginManager())
    options = {"momentum": 0.9} if optimizer == "sgd" else {}
    rates = OptimizerConfig(optimizer, learning_rate=0.1, max_grad_norm=0.1, options=options)
    config = LearnerConfig(device="cpu", data_parallel="fsdp2", micro_batch_rows=2)
    return Learner(policy.torch_module(policy.initial_weights(ranks.rank)), losses, rates, config, ranks)

def rows(part):
    return None if part is None else {name: tensor[part] for name, tensor in ALL.items()}

def step(learner, number):
    own = slice(0, 7) if learner.ranks.world_size == 1 else OWN[number][ranks.rank]
    return learner.step(rows(own), TrainerState(step=number))

alone, learner = learner_of(Ranks()), learner_of(ranks)
alone.policy.load_state_dict(learner.weights())  # rank 0's on both
metrics = [[step(one, number)["train/grad_norm"] for number in range(2)] for one in (alone, learner)]
held = sum(parameter.to_local().numel() for parameter in learner.policy.parameters())
learner.gather()
found = {
    "norms": metrics,
    "held": held,
    "size": sum(parameter.numel() for parameter in alone.policy.parameters()),
    "alone": [tensor.tolist() for tensor in alone.policy.state_dict().values()],
    "shards": [tensor.tolist() for tensor in learner.policy.state_dict().values()],
}
if ranks.rank == 0:
    moments = [one.optimizer.state_dict()["state"] for one in (alone, learner)]
    found["moments"] = [[own["exp_avg"].tolist() for own in state.values()] for state in moments]

# A run that was saved whole goes on in shards.
alone, learner = learner_of(Ranks(), "sgd"), learner_of(ranks, "sgd")
alone.policy.load_state_dict(learner.weights())
step(alone, 0)
learner.policy.load_state_dict(alone.policy.state_dict())
learner.optimizer.load_state_dict(copy.deepcopy(alone.optimizer.state_dict()))
for one in (alone, learner):
    step(one, 1)
found["resumed"] = [[tensor.tolist() for tensor in one.weights().values()] for one in (alone, learner)]

class RowMeans(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim == 2:
                self.state[parameter]["row_mean"] = parameter.grad.mean(1)

other = learner_of(ranks, "__main__:RowMeans")
step(other, 0)
try:
    other.gather()
except TrainingError as error:
    found["refused"] = str(error)
(Path(os.environ["OUT"]) / f"rank-{ranks.rank}.json").write_text(json.dumps(found))
"""


def test_shards_take_the_steps_of_a_whole_policy_whatever_rows_each_rank_has(tmp_path: Path) -> None:
    run(tmp_path, SHARDS, ranks=2)
    first, second = read(tmp_path, "rank-0.json"), read(tmp_path, "rank-1.json")
    for found in (first, second):
        alone, shards = found["norms"]
        assert shards == pytest.approx(alone, rel=1e-4)
        assert _flat(found["shards"]) == pytest.approx(_flat(found["alone"]), abs=1e-5)
        assert _flat(found["resumed"][1]) == pytest.approx(_flat(found["resumed"][0]), abs=1e-5)
    assert _flat(first["moments"][1]) == pytest.approx(_flat(first["moments"][0]), abs=1e-6)
    assert first["held"] + second["held"] == first["size"]
    assert 0 < second["held"] <= first["held"] < 0.7 * first["size"]
    assert "the state 'row_mean' of RowMeans has another shape than its parameter" in first["refused"]


DYING = (
    SUPERVISED
    + """
import os, time
class Trouble:
    critical = True
    @hookimpl
    def post_training_step(self, state):
        if state.rank == 1 and state.step == 2:
            TROUBLE
class LastWords:
    @hookimpl
    def on_training_failed(self, state, error):
        (Path(os.environ["OUT"]) / f"last-words-{state.rank}.json").write_text(json.dumps(str(error)))
trainer = build(sys.argv[1], rank_timeout_seconds=3)
trainer.add_hook(Trouble())
trainer.add_hook(LastWords())
trainer.train()
"""
)


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [("os._exit(9)", "ddp"), ("time.sleep(600)", "ddp"), ("time.sleep(600)", "fsdp2")],
    ids=["dies", "hangs", "hangs with shards"],
)
def test_a_rank_in_trouble_brings_the_other_down_with_a_clear_message(tmp_path: Path, trouble: str, kind: str) -> None:
    program = DYING.replace("TROUBLE", trouble)
    if "exit" in trouble:
        assert run_alone(tmp_path, program, kind, ranks=2) == [1, 9]
    else:
        run(tmp_path, program, kind, ranks=2, expect_failure=True)
    message = read(tmp_path, "last-words-0.json")
    lost = "rank 0 of 2 lost the other ranks while summing numbers: one has died, or did not respond in time"
    assert message.startswith(lost)


ROLLOUTS = """
import json, os
from pathlib import Path
import torch.distributed
from hookline import hookimpl
from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig
from hookline.training import LearnerConfig, RolloutConfig, Trainer, TrainerConfig

def build(epochs, kind):
    sizes = RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=1)
    config = TrainerConfig(epochs=epochs, rollout=sizes, learner=LearnerConfig(data_parallel=kind))
    config.optimizer.schedule = "constant"
    lessons = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None)
    return Trainer(config, lessons, MLPPolicy(4, Discrete(2), hidden=(8,)))

class Enough:
    @hookimpl(scope="driver")
    def on_epoch_end(self, state):
        state.stop_reason = "good enough"

found = {}
for kind in ("ddp", "fsdp2"):
    whole = build(4, kind)
    whole.train()
    first = build(2, kind)
    first.train()
    saved = [first.state_dict() if first.state.rank == 0 else None]
    later = build(4, kind)
    torch.distributed.broadcast_object_list(saved)
    later.load_state_dict(saved[0])
    later.train()
    stopped = build(4, kind)
    stopped.add_hook(Enough())
    stopped.train()
    found[kind] = {
        "stopped_at": stopped.state.epoch,
        "whole": {k: v.tolist() for k, v in whole.policy.state_dict().items()},
        "resumed": {k: v.tolist() for k, v in later.policy.state_dict().items()},
        "obs": whole.state.experience["obs"].tolist(),
        "agent_step": whole.state.agent_step,
    }
(Path(os.environ["OUT"]) / f"rank-{whole.state.rank}.json").write_text(json.dumps(found))
"""


def test_a_batch_that_ranks_cannot_share_is_an_error() -> None:
    with pytest.raises(
        DatasetError, match="supervised.batch_size 5 cannot be divided among 2 ranks: choose a multiple of 2"
    ):
        Batches([{"tokens": [2, 3]}] * 10, 5, Ranks(0, 2), {})


def test_ranks_play_different_episodes_and_hold_the_same_weights(tmp_path: Path) -> None:
    run(tmp_path, ROLLOUTS, ranks=2)
    both = read(tmp_path, "rank-0.json"), read(tmp_path, "rank-1.json")
    for kind in ("ddp", "fsdp2"):
        first, second = (rank[kind] for rank in both)
        assert first["whole"] == second["whole"]
        assert first["obs"] != second["obs"]
        assert first["agent_step"] == 4 * 2 * 32
        assert first["resumed"] == first["whole"]
        assert second["resumed"] == second["whole"]
        # What a plugin says on rank 0 alone holds for both.
        assert first["stopped_at"] == second["stopped_at"] == 0


STALE = """
import json, os
from dataclasses import replace
from pathlib import Path
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.text import CharacterTokenizer, arithmetic_lessons
from hookline.training import LearnerConfig, RolloutConfig, Trainer, TrainerConfig

lessons = arithmetic_lessons("addition-1", max_new_tokens=3)
lessons[0].environment = replace(lessons[0].environment, checker=lambda problem, response: float("1" in response))
tokenizer = CharacterTokenizer("0123456789+=")
worker = RolloutWorker(
    RolloutWorkerConfig(
        CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None),
        TransformerPolicy(tokenizer.size, width=16, layers=2, heads=2, context=16),
        num_environments=2,
        sampling=SamplingConfig(4),
        tokenizer=tokenizer,
        worker_index=int(os.environ["RANK"]),
    )
)
sizes = RolloutConfig(num_environments=2, samples_per_prompt=4, minibatches=2, update_epochs=1)
learner = LearnerConfig(data_parallel="fsdp2")
config = TrainerConfig(epochs=2, losses={"grpo": {}}, rollout=sizes, learner=learner, rank_timeout_seconds=30)
trainer = Trainer(config, worker=worker)
take, rank = trainer.source.next, trainer.state.rank

def take_stale_on_one_rank(n):
    rollouts = take(n)
    for rollout in rollouts:
        rollout.weights_version -= rank
    return rollouts

trainer.source.next = take_stale_on_one_rank
trainer.train()
found = {
    "decoupled": "proximal_logprobs" in trainer.state.experience,
    "weights": {name: own.tolist() for name, own in trainer.policy.state_dict().items()},
}
(Path(os.environ["OUT"]) / f"rank-{rank}.json").write_text(json.dumps(found))
"""


def test_ranks_with_shards_take_the_same_steps_when_the_rollouts_of_one_are_stale(tmp_path: Path) -> None:
    run(tmp_path, STALE, ranks=2)
    first, second = read(tmp_path, "rank-0.json"), read(tmp_path, "rank-1.json")
    assert first["decoupled"]
    assert second["decoupled"]
    assert first["weights"] == second["weights"]


HUGGING_FACE = """
import copy, json, os
from pathlib import Path
import torch
from hookline import PluginManager
from hookline.policies import HuggingFacePolicy, LoraConfig
from hookline.training import LearnerConfig, OptimizerConfig
from hookline.training.learner import Learner
from hookline.training.losses.registry import build_losses
from hookline.training.ranks import Ranks, join_ranks
from hookline_hookspecs import TrainerState

ranks = join_ranks(60)
folder = Path(os.environ["OUT"])
tokens = torch.randint(4, 300, (6, 9), generator=torch.Generator().manual_seed(0))
ALL = {"tokens": tokens, "valid": torch.ones_like(tokens, dtype=torch.bool), "loss_mask": tokens % 3 > 0}

def learner_of(ranks, lora):
    losses = build_losses({"sft": {}}, PluginManager())
    config = LearnerConfig(device="cpu", data_parallel="fsdp2")
    module = HuggingFacePolicy(str(folder / "model"), lora).torch_module(seed=0)
    return Learner(module, losses, OptimizerConfig("sgd", 0.1, options={"momentum": 0.9}), config, ranks)

def step(learner, number):
    own = slice(0, 6) if learner.ranks.world_size == 1 else slice(ranks.rank, 6, 2)
    learner.step({name: tensor[own] for name, tensor in ALL.items()}, TrainerState(step=number))

found = {}
for name, lora in (("all", None), ("adapters", LoraConfig(r=2))):
    alone, learner = learner_of(Ranks(), lora), learner_of(ranks, lora)
    for one in (alone, learner):
        step(one, 0)
        step(one, 1)
    learner.gather()
    saved = {key: value.clone() for key, value in alone.policy.state_dict().items()}
    pairs = [(saved, learner.policy.state_dict()), (saved, learner.weights())]
    resumed = learner_of(ranks, lora)
    resumed.policy.load_state_dict(saved)
    resumed.optimizer.load_state_dict(copy.deepcopy(alone.optimizer.state_dict()))
    for one in (alone, resumed):
        step(one, 2)
    pairs.append((alone.weights(), resumed.weights()))
    found[name] = {
        "names": [list(own) == list(other) for own, other in pairs],
        "difference": max(float((own[key] - other[key]).abs().max()) for own, other in pairs for key in own),
        "moved": max(float((saved[key] - value).abs().max()) for key, value in alone.weights().items()),
    }
(folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found))
"""


def test_a_hugging_face_policy_in_shards_takes_the_steps_of_a_whole_one(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tiny_models = pytest.importorskip("hookline.testing.tiny_models")
    tiny_models.tiny_model(tmp_path / "model")
    run(tmp_path, HUGGING_FACE, ranks=2)
    for rank in range(2):
        for found in read(tmp_path, f"rank-{rank}.json").values():
            assert all(found["names"])
            assert found["difference"] < 1e-5
            assert found["moved"] > 1e-3
