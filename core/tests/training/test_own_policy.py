"""A torch module of your own, with no JAX forward: torch plays it, and PPO trains it."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookline import PluginManager
from hookline.policies import Continuous, Discrete, MLPPolicy, PolicyError, TransformerPolicy
from hookline.policies.actor_jax import JaxActor
from hookline.policies.actor_torch import TorchActor
from hookline.policies.protocol import Actions
from hookline.policies.weights import WeightsError
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.text import arithmetic_lessons
from hookline.testing import EventRecorder
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig
from hookline.training.policy_evaluator import PolicyEvaluator
from hookline_hookspecs import EvaluationRequest


def gymnasium_cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def gymnasium_pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1")


class Agent(nn.Module):
    """As a user writes it: a forward that returns logits (or means) and a value, and no method of ours."""

    def __init__(
        self, observations: int = 4, outputs: int = 2, *, continuous: bool = False, dropout: float = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.body = nn.Sequential(nn.Linear(observations, 32), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(32, outputs)
        self.value = nn.Linear(32, 1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        if continuous:
            self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(obs)
        return self.head(x), self.value(x)


class GaussianAgent(Agent):
    """With methods of its own: actions by torch.distributions, and a std that depends on the observation."""

    def _distribution(self, obs: Tensor) -> tuple[torch.distributions.Normal, Tensor]:
        outputs, value = self(obs)
        mean, log_std = outputs.chunk(2, -1)
        return torch.distributions.Normal(mean, log_std.tanh().exp()), value.squeeze(-1)

    def act(self, obs: Tensor, *, greedy: bool) -> Tensor:
        distribution, _ = self._distribution(obs)
        return distribution.mean if greedy else distribution.sample()

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        distribution, value = self._distribution(obs)
        return distribution.log_prob(actions).sum(-1), distribution.entropy().sum(-1), value


def lessons(environment: Any, **fields: Any) -> CurriculumConfig:
    return CurriculumConfig([Lesson("lesson", environment, **fields)], micro_eval_frequency=None, eval_frequency=None)


def trainer_for(environment: Any, policy: Any, *, epochs: int = 2, plugins: Any = None, **fields: Any) -> Trainer:
    sizes = {"num_environments": 4, "steps_per_rollout": 16, "minibatches": 2, "update_epochs": 2, **fields}
    config = TrainerConfig(epochs=epochs, rollout=RolloutConfig(**sizes))
    return Trainer(config, lessons(environment), policy, plugins=plugins)


# -- what torch plays is what JAX plays --------------------------------------------------------------------------------


class ByHand(nn.Module):
    """`MLPPolicy`, written again as a user would: other names, one forward."""

    def __init__(self, policy: MLPPolicy, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.pi, self.v = (
            nn.Sequential(*(part for layer in range(3) for part in self._layer(weights, network, layer)))
            for network in ("actor", "critic")
        )
        if "log_std" in weights:
            self.log_std = nn.Parameter(torch.from_numpy(weights["log_std"]))

    @staticmethod
    def _layer(weights: dict[str, np.ndarray], network: str, layer: int) -> list[nn.Module]:
        weight, bias = weights[f"{network}.{layer}.weight"], weights[f"{network}.{layer}.bias"]
        linear = nn.Linear(*reversed(weight.shape))
        linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        return [linear, nn.Tanh()] if layer < 2 else [linear]

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.pi(obs), self.v(obs)


ACTIONS = pytest.mark.parametrize("actions", [Discrete(3), Continuous(2)], ids=["discrete", "continuous"])


def both_actors(actions: Actions) -> tuple[JaxActor, Any, TorchActor, Any]:
    policy = MLPPolicy(5, actions, hidden=(16, 16))
    rng = np.random.default_rng(1)
    fresh = policy.initial_weights(1)
    weights = {name: (own + 0.3 * rng.standard_normal(own.shape)).astype(np.float32) for name, own in fresh.items()}
    jax_actor, torch_actor = JaxActor(policy), TorchActor(ByHand(policy, weights))
    torch_actor.check("lesson 'x'", 5, actions)
    return jax_actor, jax_actor.load_weights(weights), torch_actor, torch_actor.initial_weights(0)


@ACTIONS
def test_a_module_by_hand_has_the_logprobs_and_values_of_the_jax_path(actions: Actions) -> None:
    jax_actor, jax_weights, torch_actor, torch_weights = both_actors(actions)
    rng = np.random.default_rng(0)
    taken = rng.integers(3, size=(7, 4)) if isinstance(actions, Discrete) else rng.standard_normal((7, 4, 2))
    terminated, truncated = rng.random((2, 7, 4)) < 0.3
    assert (terminated & truncated).any()
    assert (truncated & ~terminated).any()
    arrays = {
        "obs": rng.standard_normal((7, 4, 5)).astype(np.float32),
        "final_obs": rng.standard_normal((7, 4, 5)).astype(np.float32),
        "actions": taken.astype(np.int32 if isinstance(actions, Discrete) else np.float32),
        "terminated": terminated,
        "truncated": truncated,
    }
    last_obs = rng.standard_normal((4, 5)).astype(np.float32)
    by_jax = jax_actor.logprobs_and_values(jax_weights, arrays, last_obs)
    by_torch = torch_actor.logprobs_and_values(torch_weights, arrays, last_obs)
    assert by_jax.keys() == by_torch.keys() == {"logprobs", "values", "next_values"}
    for name, array in by_jax.items():
        assert by_torch[name].dtype == array.dtype == np.float32
        np.testing.assert_allclose(by_torch[name], array, atol=1e-5)
    greedy = [actor.playing(w, None)(last_obs) for actor, w in ((jax_actor, jax_weights), (torch_actor, torch_weights))]
    np.testing.assert_allclose(*greedy, atol=1e-5)


def test_sampled_actions_have_the_probabilities_of_the_logits() -> None:
    _, _, actor, weights = both_actors(Discrete(3))
    obs = np.tile(np.random.default_rng(0).standard_normal(5).astype(np.float32), (20_000, 1))
    shares = np.bincount(actor.playing(weights, [1, 2])(obs), minlength=3) / len(obs)
    with torch.no_grad():
        expected = actor.policy(torch.from_numpy(obs[:1]))[0].softmax(-1)[0]
    np.testing.assert_allclose(shares, expected, atol=0.015)


def test_sampled_actions_have_the_mean_and_the_std_of_the_policy() -> None:
    _, _, actor, weights = both_actors(Continuous(2))
    obs = np.tile(np.random.default_rng(0).standard_normal(5).astype(np.float32), (20_000, 1))
    sampled = actor.playing(weights, [1, 2])(obs)
    with torch.no_grad():
        mean = actor.policy(torch.from_numpy(obs[:1]))[0][0]
    np.testing.assert_allclose(sampled.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(sampled.std(0), weights["log_std"].exp(), rtol=0.05)


@pytest.mark.parametrize("module", [Agent(), Agent(continuous=True), GaussianAgent(outputs=4)])
def test_the_seed_alone_decides_what_is_sampled(module: nn.Module) -> None:
    actor = TorchActor(module)
    weights = actor.initial_weights(0)
    obs = np.ones((50, 4), np.float32)

    def sampled(seed: list[int]) -> list[Any]:
        act = actor.playing(weights, seed)
        return [act(obs).tolist() for _ in range(3)]

    before = torch.get_rng_state()
    first = sampled([1, 2])
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert sampled([1, 2]) == first
    assert sampled([1, 3]) != first
    assert first[0] != first[1]


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [gymnasium_cartpole, "CartPole-v1"])
def test_ppo_teaches_a_module_to_balance_a_pole(
    environment: str, hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    config = TrainerConfig(
        epochs=14,
        losses={"ppo_actor": {"entropy": 0.0}, "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None}},
        optimizer=OptimizerConfig(learning_rate=5e-3),
        rollout=RolloutConfig(num_environments=64, steps_per_rollout=32, minibatches=4, update_epochs=8),
    )
    policy = Agent()
    trainer = Trainer(config, lessons(environment), policy, plugins=hookline_manager)
    trainer.train()
    stats = [event.arguments["state"].rollout_stats for event in hookline_events.of("on_train_phase_start")]
    found = [own["rollout/mean_reward"] for own in stats]
    assert 10 < found[0] < 30  # what chance gives
    assert sum(found[-3:]) / 3 > 100
    assert trainer.policy is policy
    assert set(trainer.state_dict()["policy"]) == set(Agent().state_dict())


@pytest.mark.parametrize("policy", [Agent(3, 1, continuous=True), GaussianAgent(3, 2)], ids=["forward", "methods"])
def test_continuous_actions_are_played_and_learnt_from(policy: nn.Module) -> None:
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    trainer = trainer_for(gymnasium_pendulum, policy)
    trainer.train()
    assert trainer.worker is not None
    arrays = trainer.worker.rollout().arrays
    assert arrays["actions"].shape == (16, 4, 1)
    assert not any(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_a_rollout_has_the_arrays_of_one_by_jax() -> None:
    for environment in (gymnasium_cartpole, "CartPole-v1"):
        by_jax, by_torch = (
            Trainer(TrainerConfig(), lessons(environment, max_episode_steps=9), policy).worker
            for policy in (None, Agent())
        )
        one, other = by_jax.rollout(), by_torch.rollout()  # type: ignore[union-attr]
        described = [{n: (a.shape, a.dtype) for n, a in rollout.arrays.items()} for rollout in (one, other)]
        assert described[0] == described[1]
        assert other.stats.keys() == one.stats.keys()


def test_what_follows_a_cut_is_valued_and_what_follows_an_end_is_not() -> None:
    trainer = Trainer(TrainerConfig(), lessons("CartPole-v1", max_episode_steps=9), Agent())
    arrays = trainer.worker.rollout().arrays  # type: ignore[union-attr]
    ended = arrays["terminated"] | arrays["truncated"]
    cut = arrays["truncated"] & ~arrays["terminated"]
    assert cut[:-1].any()
    assert (arrays["next_values"][arrays["terminated"]] == 0).all()
    np.testing.assert_array_equal(arrays["next_values"][:-1][~ended[:-1]], arrays["values"][1:][~ended[:-1]])
    assert not np.isclose(arrays["next_values"][:-1][cut[:-1]], arrays["values"][1:][cut[:-1]]).all()
    logits, values = trainer.policy(torch.from_numpy(arrays["obs"]))
    taken = torch.from_numpy(arrays["actions"]).long()[..., None]
    logprobs = logits.log_softmax(-1).gather(-1, taken)[..., 0]
    np.testing.assert_allclose(arrays["logprobs"], logprobs.detach(), atol=1e-5)
    np.testing.assert_allclose(arrays["values"], values.detach()[..., 0], atol=1e-5)


def test_one_seed_gives_one_run() -> None:
    ends = []
    for _ in range(2):
        policy = Agent()
        trainer_for(gymnasium_cartpole, policy).train()
        torch.rand(3)
        ends.append(policy.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_rollouts_are_without_dropout_and_training_is_with_it() -> None:
    policy = Agent(dropout=0.5)
    trainer = trainer_for("CartPole-v1", policy)
    trainer.train()
    assert policy.training
    assert trainer.worker is not None
    arrays = trainer.worker.rollout().arrays
    _, values = policy.eval()(torch.from_numpy(arrays["obs"]))
    np.testing.assert_allclose(arrays["values"], values.detach()[..., 0], atol=1e-5)


def test_buffers_are_handed_over_with_the_weights() -> None:
    class Normalised(Agent):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 32), nn.Tanh())

    policy = Normalised()
    trainer = trainer_for("CartPole-v1", policy)
    trainer.train()
    assert policy.body[0].num_batches_tracked == 8
    assert trainer.worker is not None
    arrays = trainer.worker.rollout().arrays
    _, values = policy.eval()(torch.from_numpy(arrays["obs"].reshape(-1, 4)))
    np.testing.assert_allclose(arrays["values"].reshape(-1), values.detach()[..., 0], atol=1e-5)


def test_the_worker_plays_the_weights_that_it_was_given_last() -> None:
    policy = Agent()
    worker = trainer_for("CartPole-v1", policy).worker
    assert worker is not None
    given = copy.deepcopy(policy)
    with torch.no_grad():
        policy.value.bias += 100  # as a gradient step does, in place
        worker.evaluate_lessons(EvaluationRequest(n_examples=2), jax.random.key(0), policy.state_dict())  # for once
        arrays = worker.rollout().arrays
        np.testing.assert_allclose(arrays["values"], given(torch.from_numpy(arrays["obs"]))[1][..., 0], atol=1e-5)
        worker.update_weights(policy.state_dict(), 1)
        arrays = worker.rollout().arrays
        np.testing.assert_allclose(arrays["values"], policy(torch.from_numpy(arrays["obs"]))[1][..., 0], atol=1e-5)
    incomplete = {name: value for name, value in policy.state_dict().items() if name != "head.bias"}
    with pytest.raises(WeightsError, match=r"head\.bias is missing"):
        worker.update_weights(incomplete, 2)


@pytest.mark.parametrize("environment", [gymnasium_cartpole, "CartPole-v1"])
@pytest.mark.parametrize("greedy", [True, False])
def test_it_is_evaluated_as_any_other_policy(environment: str, greedy: bool) -> None:
    trainer = trainer_for(environment, Agent())
    request = EvaluationRequest(n_examples=6, greedy=greedy, replays=2)
    generators = torch.get_rng_state()
    one, other = (PolicyEvaluator(trainer).evaluate_policy(request) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), generators)
    assert one is not None
    assert other is not None
    assert one.scores == other.scores
    assert one.scores["eval/lesson/mean_reward"] > 5
    replays = one.episodes["lesson"]
    assert [len(replay.arrays["obs"]) for replay in replays] == [replay.metadata["length"] for replay in replays]


def test_greedy_episodes_are_those_of_the_jax_policy_with_the_same_weights() -> None:
    policy = MLPPolicy(4, Discrete(2), hidden=(16, 16))
    module = ByHand(policy, policy.initial_weights(7))
    by_jax, by_torch = (
        trainer_for("CartPole-v1", own) for own in (policy.torch_module(policy.initial_weights(7)), module)
    )
    request = EvaluationRequest(n_examples=8)
    found = [PolicyEvaluator(trainer).evaluate_policy(request) for trainer in (by_jax, by_torch)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].scores == found[1].scores


def test_the_policies_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_models = pytest.importorskip("hookline.testing.tiny_models")
    tiny_models.tiny_model(tmp_path / "tiny-qwen3")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert names["trainer"].state.step > 0
    trainer_for(gymnasium_pendulum, names["Gaussian"]()).train()


@dataclass(frozen=True)
class AgentSpecification:
    """Plain data that makes a module, without a JAX forward."""

    width: int = 4

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: own.shape for name, own in self.initial_weights().items()}

    def initial_weights(self, seed: int = 0) -> dict[str, np.ndarray]:
        return {name: value.numpy() + seed for name, value in Agent(self.width).state_dict().items()}

    def torch_module(self, weights: Any = None, seed: int = 0) -> nn.Module:
        module = Agent(self.width)
        weights = self.initial_weights(seed) if weights is None else weights
        module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        return module


def test_a_specification_without_a_jax_forward_is_played_by_torch() -> None:
    trainer = trainer_for("CartPole-v1", AgentSpecification())
    trainer.train()
    assert isinstance(trainer.policy, Agent)
    assert trainer.worker is not None
    assert trainer.worker.policy is trainer.policy


def test_a_worker_of_ones_own_plays_the_module_that_is_trained() -> None:
    worker = RolloutWorker(RolloutWorkerConfig(lessons("CartPole-v1"), num_environments=2, steps_per_rollout=8))
    policy = Agent()
    trainer = Trainer(TrainerConfig(epochs=1, rollout=RolloutConfig(minibatches=2)), policy=policy, worker=worker)
    trainer.train()
    assert worker.policy is policy


# -- what cannot be played says why ------------------------------------------------------------------------------------


class Recurrent(Agent):
    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        return *super().forward(obs), state


class Remembering(Agent):
    seen = 0.0

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = self.seen + obs.mean()
        return super().forward(obs + self.seen)


class Sequential(Agent):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 4)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(self.memory(obs)[0])


class WithState(Agent):
    def forward(self, obs: Tensor) -> Any:  # type: ignore[override]
        return *super().forward(obs), None


class OnlyActs(Agent):
    def act(self, obs: Tensor, *, greedy: bool) -> Tensor:
        return self(obs)[0].argmax(-1)


class WrongOrder(GaussianAgent):
    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, entropy, values = super().evaluate_actions(obs, actions)
        return values[:, None], logprobs, entropy


class Locked(Agent):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


CART, SWING = gymnasium_cartpole, gymnasium_pendulum


@pytest.mark.parametrize(
    ("environment", "build", "message"),
    [
        (CART, Recurrent, r"raised TypeError: .*'state'\. Its methods must take observations alone. A recurrent"),
        (CART, Remembering, "other results for the same observations in another order: rows must not depend"),
        (CART, Sequential, "A recurrent policy is not supported"),
        (CART, WithState, r"a WithState: forward\(obs\) must return two tensors, .* and it returned a tuple of 3"),
        (CART, lambda: Agent(5), r"has observations of shape \(rows, 4\), and the policy, a Agent, raised Runtime"),
        ("CartPole-v1", lambda: Agent(5), r"has observations of shape \(rows, 4\), and the policy, a Agent, raised"),
        (CART, lambda: Agent(4, 3), r"of shape \(3, 3\) .* for Discrete\(n=2\) they must be of shape \(3, 2\)"),
        (CART, OnlyActs, r"the policy, a OnlyActs, has no evaluate_actions\(\): define both act"),
        (SWING, lambda: Agent(3, 1), "are continuous, and the policy, a Agent, has no log_std: add self.log_std"),
        (CART, lambda: GaussianAgent(4, 4), r"act\(\) of the policy, a GaussianAgent, returned torch.float32 of shape"),
        (SWING, lambda: WrongOrder(3, 2), r"returned log-probabilities of shape \(3, 1\) for three observations, not"),
    ],
)
def test_a_module_that_cannot_be_played_is_an_error_that_says_why(
    environment: str | Callable[..., Any], build: Callable[[], nn.Module], message: str
) -> None:
    name = getattr(environment, "__name__", environment)
    with pytest.raises(PolicyError, match=rf"lesson 'lesson': environment '{name}'.*{message}"):
        trainer_for(environment, build())


def test_a_module_that_cannot_be_copied_is_an_error_that_says_why() -> None:
    with pytest.raises(PolicyError, match="a Locked, cannot be copied for rollouts .*: keep environments, files and"):
        trainer_for(CART, Locked())


class Speaker(Agent):
    """It can be trained on text, but nothing can sample from it."""

    def token_logprobs(self, tokens: Tensor, valid: Tensor, temperature: Tensor | None = None) -> Tensor:
        raise NotImplementedError


def test_text_lessons_say_what_a_module_of_ones_own_lacks() -> None:
    text = CurriculumConfig(arithmetic_lessons("addition-1"), micro_eval_frequency=None, eval_frequency=None)
    with pytest.raises(PolicyError, match=r"are text \(addition-1\), but the policy, a Agent, has no token_logprobs"):
        Trainer(TrainerConfig(), text, Agent())
    with pytest.raises(
        PolicyError, match=r"the policy, a Speaker, cannot generate text: it has no jax_prefill\(\) and"
    ):
        Trainer(TrainerConfig(), text, Speaker())
    worker = RolloutWorker(RolloutWorkerConfig(text, policy=TransformerPolicy(98, width=16, layers=1, heads=2)))
    with pytest.raises(PolicyError, match=r"are text \(addition-1\), but the policy, a Agent, has no token_logprobs"):
        Trainer(TrainerConfig(), policy=Agent(), worker=worker)
