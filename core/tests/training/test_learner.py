"""The learner: optimizers, schedules, accumulation, precision and devices, beside plain torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookline import PluginManager, hookimpl
from hookline.policies import Continuous, Discrete, MLPPolicy, TransformerPolicy
from hookline.testing import EventRecorder
from hookline.training import LearnerConfig, Loss, OptimizerConfig, Trainer, TrainerConfig
from hookline.training.errors import NonFiniteLossError, TrainerConfigError, TrainingError
from hookline.training.experience import Experience
from hookline.training.learner import Learner
from hookline.training.learner.data_parallel import Replicas
from hookline.training.learner.learner import AutogradUpdate, choose_device
from hookline.training.learner.optimizers import scheduled_learning_rate
from hookline.training.losses import SharedLossData, actions_forward
from hookline.training.losses.loss import LossConfig
from hookline.training.losses.registry import OWN_LOSSES, build_losses
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

STATE = TrainerState(epoch=1, total_epochs=4)
PLAIN = OptimizerConfig("sgd", learning_rate=0.1, schedule="constant", max_grad_norm=None)


class Entropy(Loss):
    def run_train(self, shared: SharedLossData) -> Tensor:
        return -actions_forward(shared).entropy.mean()


class Others:
    @hookimpl
    def register_losses(self) -> Mapping[str, type[Loss]]:
        return {"entropy": Entropy}


def losses_of(names: Mapping[str, Mapping[str, Any]]) -> list[Loss]:
    plugins = PluginManager()
    plugins.register(Others())
    return build_losses(names, plugins)


def learner_of(
    policy: nn.Module, losses: Mapping[str, Any], optimizer: OptimizerConfig = PLAIN, **config: Any
) -> Learner:
    return Learner(policy, losses_of(losses), optimizer, LearnerConfig(**{"device": "cpu", **config}))


def gradient_of(learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
    """What one step moved the weights by, with a plain gradient descent of learning rate 0.1."""
    before = nn.utils.parameters_to_vector(learner.policy.parameters()).detach().clone()
    learner.step(batch, STATE)
    return (before - nn.utils.parameters_to_vector(learner.policy.parameters()).detach()) / 0.1


def text_batch(rows: int = 12, length: int = 9, seed: int = 0, **kinds: Any) -> dict[str, Tensor]:
    """Responses of very different lengths, as GRPO and SFT see them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, length + 1, (rows, 1), generator=generator)
    valid = torch.arange(length) < lengths
    rewards = torch.randn(rows, generator=generator)
    rewards[3] = math.nan
    batch = {
        "tokens": torch.randint(10, (rows, length), generator=generator),
        "valid": valid,
        "loss_mask": valid & (torch.arange(length) > 0),
        "logprobs": -2.3 + 0.3 * torch.randn(rows, length - 1, generator=generator),
        "temperature": torch.linspace(0.5, 1.5, rows),
        "rewards": rewards,
        "advantages": torch.randn(rows, generator=generator),
        "groups": torch.arange(rows) // 4,
    }
    return {name: tensor.to(**kinds) for name, tensor in batch.items()}


def control_batch(rows: int = 12, seed: int = 0, **kinds: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    batch = {name: torch.randn(rows, generator=generator) for name in ("advantages", "returns", "values")}
    batch["obs"] = torch.randn(rows, 3, generator=generator)
    batch["actions"] = torch.randint(4, (rows,), generator=generator, dtype=torch.int32)
    batch["logprobs"] = -1.4 + 0.3 * torch.randn(rows, generator=generator)
    return {name: tensor.to(**kinds) for name, tensor in batch.items()}


def transformer() -> nn.Module:
    policy = TransformerPolicy(vocabulary=10, width=16, layers=2, heads=2, context=12)
    return policy.torch_module(policy.initial_weights(1))


def actor_critic() -> nn.Module:
    policy = MLPPolicy(3, Discrete(4), hidden=(8, 8))
    return policy.torch_module(policy.initial_weights(3))


def continuous_actor_critic() -> nn.Module:
    policy = MLPPolicy(3, Continuous(2), hidden=(8,))
    return policy.torch_module(policy.initial_weights(3))


def continuous_batch(**kinds: Any) -> dict[str, Tensor]:
    actions = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
    return {**control_batch(**kinds), "actions": actions.to(**kinds)}


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Callable[..., dict[str, Tensor]]]] = {
    "ppo": (actor_critic, {"ppo_actor": {}, "ppo_critic": {}, "entropy": {"weight": 0.1}}, control_batch),
    "ppo of continuous actions": (continuous_actor_critic, {"ppo_actor": {}, "ppo_critic": {}}, continuous_batch),
    "kl of actions": (actor_critic, {"ppo_actor": {}, "kl": {"of": "actions"}}, control_batch),
    "grpo": (transformer, {"grpo": {}}, text_batch),
    "grpo with kl": (transformer, {"grpo": {"kl": 0.1}}, text_batch),
    "sft and kl": (transformer, {"sft": {}, "kl": {}}, text_batch),
}


@pytest.mark.parametrize("rows", [1, 5, 6])
@pytest.mark.parametrize("case", CASES)
def test_accumulated_gradients_are_those_of_the_whole_minibatch(case: str, rows: int) -> None:
    policy, losses, batch = CASES[case]
    whole = gradient_of(learner_of(policy(), losses), batch())
    in_parts = gradient_of(learner_of(policy(), losses, micro_batch_rows=rows), batch())
    assert whole.norm() > 0.01
    torch.testing.assert_close(in_parts, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_accumulation_reports_the_same_numbers(case: str) -> None:
    policy, losses, batch = CASES[case]
    whole = learner_of(policy(), losses).step(batch(), STATE)
    in_parts = learner_of(policy(), losses, micro_batch_rows=5).step(batch(), STATE)
    assert in_parts == pytest.approx(whole, abs=1e-5)


# -- devices: on torch's meta device an operation with a tensor of the CPU raises, as it would on a GPU ---------------


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize("case", CASES)
def test_a_step_makes_no_tensor_on_another_device_than_the_policy(case: str, rows: int | None) -> None:
    policy, losses, batch = CASES[case]
    module = policy().to("meta")
    own = losses_of(losses)
    for loss in own:
        loss.attach_policy(module)
    update = AutogradUpdate(module, PLAIN, LearnerConfig(micro_batch_rows=rows), Replicas(module, Ranks()))
    gradient = update.gradient(own, batch(device="meta"), STATE, None)
    assert isinstance(gradient.values, Tensor)
    assert isinstance(gradient.norm, Tensor)
    assert gradient.values.device.type == gradient.norm.device.type == "meta"
    for number in gradient.stats.values():
        assert torch.as_tensor(number).device.type == "meta"
    update.apply(gradient.norm, 0.5)


@pytest.mark.parametrize("case", CASES)
def test_a_validation_makes_no_tensor_on_another_device_than_the_policy(case: str) -> None:
    policy, losses, batch = CASES[case]
    learner = learner_of(policy(), losses, device="meta")
    assert learner.validate(batch(device="meta"), STATE).device.type == "meta"


def test_every_loss_is_tried_on_another_device() -> None:
    assert {name for _, losses, _ in CASES.values() for name in losses} >= OWN_LOSSES.keys()


class FromTheCPU(Loss):
    def run_train(self, shared: SharedLossData) -> Tensor:
        return (actions_forward(shared).entropy * torch.ones(12)).mean()


def test_a_loss_that_makes_a_tensor_on_the_cpu_is_found_out() -> None:
    learner = Learner(actor_critic(), [FromTheCPU("from_the_cpu", LossConfig())], PLAIN, LearnerConfig(device="meta"))
    with pytest.raises(RuntimeError, match="device"):
        learner.validate(control_batch(device="meta"), STATE)


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("case", ["ppo", "grpo"])
def test_a_rollout_phase_makes_no_tensor_on_another_device_than_its_data(case: str, is_stale: bool) -> None:
    policy, losses, batch = CASES[case]
    module = policy().to("meta")
    own = losses_of(losses)
    experience = Experience(own)
    rows = batch(device="meta")
    if case == "ppo":
        flags = torch.zeros(12, dtype=torch.bool, device="meta")
        rows |= {"rewards": rows["values"], "next_values": rows["values"], "terminated": flags, "truncated": flags}
        grid: tuple[int, ...] = (3, 4)
        rows = {name: tensor.reshape(3, 4, *tensor.shape[1:]) for name, tensor in rows.items()}
    else:
        grid = (12,)
    computed = {name for name, field in experience.spec.items() if field.computed}
    experience.fill({name: tensor for name, tensor in rows.items() if name not in computed}, grid, is_stale=is_stale)
    for loss in own:
        loss.rollout(SharedLossData(STATE, module, experience=experience), steps=1)
    fields = experience.flat()
    assert ("proximal_logprobs" in fields) == is_stale
    assert {name: own.device.type for name, own in fields.items()} == dict.fromkeys(fields, "meta")


# -- optimizers and schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("adamw", {"weight_decay": 0.1}, torch.optim.AdamW),
        ("SGD", {"momentum": 0.9}, torch.optim.SGD),
        ("torch.optim.RMSprop", {"alpha": 0.9}, torch.optim.RMSprop),
        ("torch.optim:Adagrad", {}, torch.optim.Adagrad),
    ],
)
def test_any_optimizer_takes_the_steps_of_torch(name: str, options: dict[str, Any], reference: Any) -> None:
    config = OptimizerConfig(name, learning_rate=0.05, schedule="constant", options=options, max_grad_norm=1.0)
    learner = learner_of(transformer(), {"sft": {}}, config)
    expected = transformer()
    optimizer = reference(expected.parameters(), lr=0.05, **options)
    for seed in range(4):
        batch = text_batch(seed=seed)
        learner.step(batch, STATE)
        optimizer.zero_grad()
        logprobs, mask = expected.token_logprobs(batch["tokens"], batch["valid"]), batch["loss_mask"][:, 1:]
        (-(logprobs * mask).sum() / mask.sum()).backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
        optimizer.step()
    wanted = dict(expected.named_parameters())
    for own_name, found in learner.policy.named_parameters():
        if not own_name.endswith("qkv.bias"):  # no bias of keys changes the loss: Adam makes steps of rounding errors
            torch.testing.assert_close(found, wanted[own_name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OptimizerConfig("admw"), "torch.optim has no 'admw' .did you mean 'adamw'"),
        (OptimizerConfig("torch.optim.Missing"), "'torch.optim.Missing' cannot be imported"),
        (OptimizerConfig("torch.nn.Linear"), "'torch.nn.Linear' is not a torch.optim.Optimizer"),
        (OptimizerConfig("sgd", options={"momentun": 0.9}), "SGD has no 'momentun' .did you mean 'momentum'"),
        (OptimizerConfig("lbfgs"), "LBFGS needs a closure to evaluate the loss several times a step"),
        (OptimizerConfig("adamw", options={"eps": -1.0}), "optimizer 'adamw': Invalid epsilon value"),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_an_error(config: OptimizerConfig, message: str) -> None:
    with pytest.raises(TrainerConfigError, match=message):
        learner_of(transformer(), {"sft": {}}, config)


def rates(config: OptimizerConfig, total_steps: int | None = 10, steps: int = 10) -> list[float]:
    states = (
        TrainerState(step=step, epoch=step // 5, total_epochs=2, total_steps=total_steps) for step in range(steps)
    )
    return [scheduled_learning_rate(config, state) for state in states]


def test_schedules_of_the_learning_rate() -> None:
    assert rates(OptimizerConfig(learning_rate=2.0, schedule="constant")) == [2.0] * 10
    assert rates(OptimizerConfig(learning_rate=2.0)) == pytest.approx([2 - 0.2 * step for step in range(10)])
    cosine = rates(OptimizerConfig(learning_rate=2.0, schedule="cosine"))
    assert cosine == pytest.approx([1 + math.cos(math.pi * step / 10) for step in range(10)])
    warm = rates(OptimizerConfig(learning_rate=2.0, warmup_steps=4))
    assert warm == pytest.approx([0.5, 1.0, 1.5, 2.0, *(2 * (1 - step / 6) for step in range(6))])


def test_a_run_of_unknown_length_falls_epoch_by_epoch() -> None:
    assert rates(OptimizerConfig(learning_rate=2.0), total_steps=None) == [2.0] * 5 + [1.0] * 5


def test_the_config_lists_every_value_that_makes_no_sense() -> None:
    learner = LearnerConfig(precision="fp8", micro_batch_rows=0, data_parallel="fsdp")  # type: ignore[arg-type]
    config = TrainerConfig(learner=learner)
    config.optimizer.schedule = "cosin"  # type: ignore[assignment]
    with pytest.raises(TrainerConfigError) as raised:
        Trainer(config)
    for fault in (
        "learner.micro_batch_rows must be at least 1, got 0",
        "learner.precision must be one of fp32, bf16, got 'fp8'",
        "learner.data_parallel must be one of ddp, fsdp2, got 'fsdp'",
        "optimizer.schedule must be one of constant, linear, cosine, got 'cosin'",
    ):
        assert fault in str(raised.value)


# -- device, precision, memory ------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TrainingError, match='learner.device is "cuda", but torch finds none'):
        learner_of(transformer(), {"sft": {}}, device="cuda")
    assert learner_of(transformer(), {"sft": {}}, device="auto").device.type in ("cpu", "mps")


def test_a_device_that_torch_does_not_know_is_an_error() -> None:
    with pytest.raises(TrainingError, match='learner.device is "gpu": it must be auto, cpu, cuda, cuda:1 or mps'):
        learner_of(transformer(), {"sft": {}}, device="gpu")


def test_a_process_under_torchrun_takes_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")] * 2
    assert choose_device("cuda:0") == torch.device("cuda:0")


def test_bf16_keeps_the_weights_in_fp32_and_comes_close_to_its_gradient() -> None:
    exact = gradient_of(learner_of(transformer(), {"sft": {}}), text_batch())
    learner = learner_of(transformer(), {"sft": {}}, precision="bf16")
    rough = gradient_of(learner, text_batch())
    assert {parameter.dtype for parameter in learner.policy.parameters()} == {torch.float32}
    assert not torch.equal(rough, exact)
    assert (rough - exact).norm() < 0.05 * exact.norm()


def test_gradient_checkpointing_keeps_the_gradient_and_recomputes_the_blocks() -> None:
    calls: list[int] = []
    kept, recomputed = transformer(), transformer()
    for number, module in enumerate((kept, recomputed)):
        module.blocks[0].register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    wanted = gradient_of(learner_of(kept, {"sft": {}}), text_batch())
    found = gradient_of(learner_of(recomputed, {"sft": {}}, gradient_checkpointing=True), text_batch())
    torch.testing.assert_close(found, wanted)
    assert (calls.count(0), calls.count(1)) == (1, 2)


def test_a_policy_without_gradient_checkpointing_says_so() -> None:
    with pytest.raises(TrainingError, match="ActorCritic, has no gradient_checkpointing_enable"):
        learner_of(actor_critic(), {"ppo_actor": {}}, gradient_checkpointing=True)


def test_a_policy_with_parameters_of_two_types_can_be_trained() -> None:
    mixed = transformer()
    mixed.position_embedding.to(torch.bfloat16)
    learner = learner_of(mixed, {"sft": {}}, OptimizerConfig("adamw", learning_rate=1e-2, schedule="constant"))
    losses = [learner.step(text_batch(), STATE)["train/loss"] for _ in range(5)]
    assert losses[-1] < losses[0]


def test_a_policy_with_nothing_to_train_is_an_error() -> None:
    with pytest.raises(TrainingError, match="Transformer, has no parameter that can be trained"):
        learner_of(transformer().requires_grad_(False), {"sft": {}})


def test_a_ratio_that_overflows_is_an_error_of_the_loss() -> None:
    far = {**control_batch(), "logprobs": torch.full((12,), -200.0), "advantages": -torch.ones(12)}
    losses = {"ppo_actor": {"normalize_advantages": False}, "entropy": {}}
    with pytest.raises(NonFiniteLossError, match="loss 'ppo_actor' is inf at step 0 of epoch 1"):
        learner_of(actor_critic(), losses).step(far, STATE)


# -- the hand-written step ----------------------------------------------------------------------------------------


def test_a_run_is_the_same_without_the_hand_written_step(
    playing: Callable[..., Trainer], hookline_events: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that module is deleted, everything works, and the curves agree."""
    fast = playing(epochs=3)
    fast.train()
    monkeypatch.setitem(sys.modules, "hookline.training.learner.fused_ppo", None)
    plain = playing(epochs=3)
    assert type(plain.optimizer).__module__.startswith("torch.optim")
    assert not type(fast.optimizer).__module__.startswith("torch.optim")
    plain.train()
    reports = [event.arguments["report_data"] for event in hookline_events.of("post_training_step")]
    for found, wanted in zip(reports[: len(reports) // 2], reports[len(reports) // 2 :], strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("module", "needed"), [("fused_ppo", "hookline.training.losses.ppo_critic"), ("onednn", "platform")]
)
def test_a_fast_path_that_cannot_import_what_it_needs_is_an_error(
    module: str, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"hookline.training.learner.{module}", raising=False)
    monkeypatch.setitem(sys.modules, needed, None)
    with pytest.raises(ModuleNotFoundError, match=needed):
        learner_of(actor_critic(), {"entropy": {}})


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ({}, Ranks(0, 2)),
        ({"data_parallel": "fsdp2"}, None),
        ({"precision": "bf16"}, None),
        ({"micro_batch_rows": 4}, None),
    ],
    ids=["ddp", "fsdp2", "bf16", "accumulation"],
)
def test_all_but_the_plainest_config_on_one_rank_is_left_to_autograd(
    config: dict[str, Any], ranks: Ranks | None
) -> None:
    losses = losses_of({"ppo_actor": {}, "ppo_critic": {}})
    learner = Learner(actor_critic(), losses, OptimizerConfig("adam"), LearnerConfig("cpu", **config), ranks)
    assert isinstance(learner.optimizer, torch.optim.Adam)


def test_actions_that_are_not_discrete_are_left_to_autograd() -> None:
    policy = MLPPolicy(3, Continuous(2), (4,)).torch_module()
    learner = learner_of(policy, {"ppo_actor": {}, "ppo_critic": {}}, OptimizerConfig("adam"))
    assert isinstance(learner.optimizer, torch.optim.Adam)
