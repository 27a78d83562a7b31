"""Training on rollouts that are made ahead, in a thread or in processes: stale rows, resuming, ranks, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hookline import PluginManager, hookimpl
from hookline.errors import ConfigError
from hookline.policies import Discrete, MLPPolicy, TransformerPolicy
from hookline.policies.forward_torch import control_policy
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.errors import RolloutError
from hookline.rollout.text import CharacterTokenizer, arithmetic_lessons
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline.training.config import check_config
from hookline.training.errors import TrainerConfigError
from hookline.training.losses.grpo import GRPO
from hookline.training.losses.loss import Field, SharedLossData
from hookline.training.losses.ppo_actor import PPOActor
from hookline_hookspecs import EvaluationRequest, Rollout

QUIET = {"micro_eval_frequency": None, "eval_frequency": None}


def control(
    plugins: PluginManager, *, epochs: int = 6, policy: Any = None, losses: Any = None, **rollout: Any
) -> Trainer:
    sizes = {"num_environments": 4, "steps_per_rollout": 8, "minibatches": 2, "update_epochs": 1}
    config = TrainerConfig(epochs=epochs, losses=losses, rollout=RolloutConfig(**{**sizes, **rollout}))
    config.optimizer.schedule = "constant"
    config.optimizer.learning_rate = 0.05  # so that versions differ
    policy = policy or MLPPolicy(4, Discrete(2), hidden=(8,))
    return Trainer(config, CurriculumConfig(**QUIET), policy, plugins=plugins)


class Versions:
    """Keeps the weights of every version that is published."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.staleness: list[float] = []

    @hookimpl
    def on_weights_updated(self, context: Any, version: int) -> None:
        self.weights[version] = {
            name: own.clone() for name, own in context.worker.run_state.policy.state_dict().items()
        }

    @hookimpl
    def on_train_phase_start(self, state: Any) -> None:
        self.staleness.append(state.rollout_stats["source/staleness"])

    def ratio(self, shared: SharedLossData, log_prob: Any) -> Tensor:
        """The ratio of each row to the weights of its own version."""
        versions = shared.batch["weights_version"]
        now = log_prob(shared.policy, shared.batch)
        then = torch.zeros_like(now)
        for version in versions.unique().tolist():
            own = Frozen(shared.policy, self.weights[version])
            then = torch.where(
                (versions == version).reshape(-1, *[1] * (now.ndim - 1)), log_prob(own, shared.batch), then
            )
        return (now - then).exp()


class Frozen:
    """A policy with other weights."""

    def __init__(self, policy: nn.Module, weights: Mapping[str, Tensor]) -> None:
        self._policy, self._weights = policy, weights

    def __call__(self, *arguments: Any) -> Any:
        return functional_call(self._policy, dict(self._weights), arguments)


def offering(loss: type) -> object:
    class Offering:
        @hookimpl
        def register_losses(self) -> Mapping[str, Any]:
            return {"probe": loss}

    return Offering()


@pytest.mark.parametrize("staleness", [1, 4])
def test_the_ratio_of_a_stale_row_is_to_the_weights_that_it_was_made_with(
    hookline_manager: PluginManager, staleness: int
) -> None:
    versions = Versions()
    checked = []

    class Probe(PPOActor):
        def get_experience_spec(self) -> Mapping[str, Field]:
            return {**super().get_experience_spec(), "weights_version": Field("int64", ())}

        @torch.no_grad()
        def check(self, shared: SharedLossData) -> None:
            def log_prob(policy: Any, batch: Mapping[str, Tensor]) -> Tensor:
                logits = policy(batch["obs"])[0]
                return logits.log_softmax(-1).gather(-1, batch["actions"].long()[:, None])[:, 0]

            expected = versions.ratio(shared, log_prob)
            new = control_policy(shared.policy).evaluate_actions(shared.batch["obs"], shared.batch["actions"])[0]
            torch.testing.assert_close((new - shared.batch["logprobs"]).exp(), expected, atol=1e-4, rtol=1e-4)
            checked.append(expected)

        def run_train(self, shared: SharedLossData) -> Tensor:
            self.check(shared)
            return super().run_train(shared)

    hookline_manager.register(versions)
    hookline_manager.register(offering(Probe))
    losses = {"ppo_critic": {}, "probe": {}}
    trainer = control(
        hookline_manager,
        epochs=staleness + 3,
        losses=losses,
        source="ahead",
        max_staleness=staleness,
        source_options={"prefetch": staleness},
    )
    trainer.train()
    assert sorted(versions.weights) == list(range(staleness + 4)), "versions count what was published"
    assert versions.staleness[-1] == staleness
    assert (checked[-2] - 1).abs().max() > 0.01, "the ratio of a stale row is not 1 before the first step on it"


def test_the_ratio_of_a_stale_token_is_to_the_weights_that_it_was_sampled_with(hookline_manager: PluginManager) -> None:
    versions = Versions()
    checked = []

    class Probe(GRPO):
        def get_experience_spec(self) -> Mapping[str, Field]:
            return {**super().get_experience_spec(), "weights_version": Field("int64", ())}

        def rows_to_learn_from(self, experience: Any) -> None:
            return None

        def run_train(self, shared: SharedLossData) -> Tensor:
            with torch.no_grad():
                batch = shared.batch

                def log_prob(policy: Any, batch: Mapping[str, Tensor]) -> Tensor:
                    logits = policy(batch["tokens"])
                    return logits.log_softmax(-1)[:, :-1].gather(-1, batch["tokens"][:, 1:, None])[..., 0]

                expected = versions.ratio(shared, log_prob)
                mask = batch["loss_mask"][:, 1:]
                now = shared.policy.token_logprobs(batch["tokens"], batch["valid"])
                found = (now - batch["logprobs"]).exp()
                torch.testing.assert_close(found[mask], expected[mask], atol=1e-3, rtol=1e-3)
                checked.append(expected[mask])
            return super().run_train(shared)

    hookline_manager.register(versions)
    hookline_manager.register(offering(Probe))
    tokenizer = CharacterTokenizer("0123456789+=")
    sizes = RolloutConfig(4, samples_per_prompt=4, minibatches=2, update_epochs=1, source="ahead")
    config = TrainerConfig(4, losses={"probe": {}}, rollout=sizes)
    config.optimizer.learning_rate = 0.01
    # A lesson that rewards what is random, so that there is something to learn from.
    lessons = arithmetic_lessons("addition-1", max_new_tokens=3)
    checker = lambda problem, response: float(len(response) % 2)  # noqa: E731
    lessons[0].environment = replace(lessons[0].environment, checker=checker)
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(lessons, **QUIET),
            TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=16),
            num_environments=4,
            sampling=SamplingConfig(4),
            tokenizer=tokenizer,
        ),
        hookline_manager,
    )
    Trainer(config, worker=worker, plugins=hookline_manager).train()
    assert versions.staleness[1:] == [1.0] * 3
    assert (checked[-2] - 1).abs().max() > 0.01


def test_a_resumed_run_plays_with_the_weights_of_its_version_and_what_was_left_over() -> None:
    class Seen:
        def __init__(self) -> None:
            self.versions: list[int] = []
            self.rollouts: list[Rollout] = []

        @hookimpl
        def on_weights_updated(self, version: int) -> None:
            self.versions.append(version)

        @hookimpl
        def on_rollout_end(self, rollout: Rollout) -> None:
            self.rollouts.append(rollout)

    def build(epochs: int) -> tuple[Trainer, Seen]:
        plugins, seen = PluginManager(), Seen()
        plugins.register(seen)
        return control(plugins, epochs=epochs, source="ahead"), seen

    first, _ = build(2)
    first.train()
    saved = first.state_dict()
    saved = {**saved, **json.loads(json.dumps({name: saved[name] for name in ("counters", "progress")}))}
    later, seen = build(4)
    later.load_state_dict(saved)
    later.train()
    assert seen.versions == [2, 3, 4]
    assert [rollout.weights_version for rollout in seen.rollouts] == [2, 2], "none of them was made before the resume"
    assert later.worker is not None
    assert later.worker.step == 4
    state = later.loop.state_dict()
    assert state["version"] == 4
    assert state["source"]["unplayed"] == [[4, "cartpole"]]


class Evaluating:
    """Evaluates at the end of each epoch, after one of its gradient steps, and at the end of the run."""

    critical = True

    def __init__(self, plugins: PluginManager, *, on_workers: bool) -> None:
        self._emit = plugins.emit
        self._request = EvaluationRequest(n_examples=4, greedy=False, replays=2, on_workers=on_workers)
        self.scores: list[Mapping[str, float]] = []
        self.versions: list[int] = []

    def evaluate(self, state: Any) -> None:
        result = self._emit.evaluate_policy(state=state, request=self._request)
        self.scores.append(result.scores)
        assert len(result.episodes["cartpole"]) == 2

    @hookimpl
    def post_training_step(self, state: Any) -> None:
        if state.step == 3:
            self.evaluate(state)

    @hookimpl
    def on_epoch_end(self, state: Any) -> None:
        self.evaluate(state)

    @hookimpl
    def on_training_complete(self, state: Any) -> None:
        self.evaluate(state)


@pytest.mark.parametrize("source", ["local", "ahead", "processes"])
def test_an_evaluation_on_the_workers_is_that_of_the_trainer(source: str) -> None:
    """Also between the steps of an epoch, when the workers have older weights, and when all training is done."""
    scores = []
    for on_workers in (False, True):
        plugins = PluginManager()
        evaluating = Evaluating(plugins, on_workers=on_workers)
        plugins.register(evaluating)
        # With no staleness, both runs train on the same rollouts.
        control(plugins, epochs=2, source=source, max_staleness=0).train()
        scores.append(evaluating.scores)
    assert scores[0] == scores[1]
    assert len(scores[0]) == 4
    assert scores[0][0] != scores[0][1], "the weights have changed between them"


def make_agent() -> nn.Module:
    """A policy without a JAX forward, so that torch plays it. Made inside of a function, it is pickled by value."""

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.Linear(4, 3)

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            outputs = self.heads(obs)
            return outputs[..., :2], outputs[..., 2]

    return Agent()


def test_a_policy_that_torch_plays_is_played_in_processes_and_not_in_a_thread(hookline_manager: PluginManager) -> None:
    with pytest.raises(RolloutError, match="'ahead' would play this policy, a torch module, with torch's global rng"):
        control(hookline_manager, policy=make_agent(), source="ahead")
    state = control(PluginManager(), epochs=2, policy=make_agent(), source="processes").train()
    assert state.rollout_stats["source/staleness"] == 1.0


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"source": "locall"}, r"there is no source 'locall' \(did you mean 'local'\?\)"),
        ({"source": "processes", "source_options": {"deadline": 3}}, "did you mean 'deadline_seconds'"),
    ],
)
def test_a_source_that_there_is_not_is_an_error_before_anything_starts(rollout: dict[str, Any], message: str) -> None:
    with pytest.raises((RolloutError, ConfigError), match=message):
        control(PluginManager(), **rollout)


def test_numbers_that_make_no_sense_are_named() -> None:
    with pytest.raises(TrainerConfigError) as caught:
        check_config(TrainerConfig(rollout=RolloutConfig(workers=0, max_staleness=-1)))
    assert "rollout.workers must be at least 1, got 0" in str(caught.value)
    assert "rollout.max_staleness must be at least 0, got -1" in str(caught.value)


KILLED = """
import os
from hookline import PluginManager, hookimpl
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline.rollout import CurriculumConfig

class Watch:
    @hookimpl
    def on_epoch_end(self, state):
        print("pids", *trainer.source.pids(), flush=True)

plugins = PluginManager()
plugins.register(Watch())
sizes = RolloutConfig(4, 8, minibatches=2, update_epochs=1, source="processes", workers=1)
trainer = Trainer(TrainerConfig(100000, rollout=sizes), CurriculumConfig(eval_frequency=None, micro_eval_frequency=None), plugins=plugins)
trainer.train()
"""


def test_the_processes_of_a_trainer_end_with_it_also_by_a_kill(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        _, pid = trainer.stdout.readline().split()
        os.kill(int(pid), 0)
        trainer.send_signal(signal.SIGKILL)
        # The workers hold the standard error that is read here to its end: this returns when the last of them is gone.
        trainer.communicate(timeout=500)


RANKS = """
import json, os
from pathlib import Path
from hookline import PluginManager, hookimpl
from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline.training.errors import TrainerConfigError

def build(workers, plugins, source="processes"):
    sizes = RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=1, rollouts_per_epoch=2,
                          source=source, workers=workers)
    lessons = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None)
    return Trainer(TrainerConfig(epochs=3, rollout=sizes), lessons, MLPPolicy(4, Discrete(2), hidden=(8,)), plugins=plugins)

rank = int(os.environ["RANK"])
try:
    build(1, PluginManager(rank=rank))
except TrainerConfigError as error:
    refused = str(error)
else:
    refused = ""

class Watch:
    pids = []
    @hookimpl
    def on_epoch_end(self, state):
        Watch.pids = trainer.source.pids()

plugins = PluginManager(rank=rank)
plugins.register(Watch())
found = {"refused": refused}
for source, workers in (("processes", 3), ("ahead", 2)):
    trainer = build(workers, plugins, source)
    trainer.train()
    found[source] = {
        "workers": len(set(Watch.pids)), "obs": trainer.state.experience["obs"].tolist(),
        "weights": {k: v.tolist() for k, v in trainer.policy.state_dict().items()}, "agent_step": trainer.state.agent_step,
        "staleness": trainer.state.rollout_stats["source/staleness"],
    }
(Path(os.environ["OUT"]) / f"rank-{rank}.json").write_text(json.dumps(found))
"""


def test_two_ranks_have_a_share_of_the_workers_each_and_hold_the_same_weights(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(RANKS))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OUT": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environ)
    assert result.returncode == 0, result.stdout + result.stderr
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert "rollout.workers is 1, and there are 2 ranks: each needs at least one" in second["refused"]
    assert (first["processes"]["workers"], second["processes"]["workers"]) == (2, 1)
    for source in ("processes", "ahead"):
        one, other = first[source], second[source]
        assert one["weights"] == other["weights"]
        assert one["obs"] != other["obs"]
        assert one["agent_step"] == 3 * 2 * 2 * 32
        assert max(one["staleness"], other["staleness"]) <= 1.0, "it depends on time, and has a limit"
