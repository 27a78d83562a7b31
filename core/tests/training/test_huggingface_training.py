"""Training Hugging Face policies: by folder, name, object, with adapters; and against a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
from torch.nn import functional
from transformers import AutoModelForCausalLM

from hookline import PluginManager, hookimpl
from hookline.policies import HuggingFacePolicy
from hookline.policies.huggingface_torch import CausalLM
from hookline.rollout import CurriculumConfig, Lesson
from hookline.rollout.text import TextTask
from hookline.testing.tiny_models import FAMILIES, tiny_model, tiny_tokenizer
from hookline.training import (
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
    RolloutConfig,
    SupervisedConfig,
    Trainer,
    TrainerConfig,
)
from hookline.training.errors import TrainerConfigError

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
EXAMPLES = [{"tokens": [4 + (i * k) % 200 for k in range(1, 6 + i % 7)]} for i in range(1, 13)]


def supervised(**fields: Any) -> TrainerConfig:
    return TrainerConfig(
        **{
            "epochs": 2,
            "optimizer": OptimizerConfig(learning_rate=1e-3),
            "supervised": SupervisedConfig(batch_size=4),
            **fields,
        }
    )


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: own.clone() for name, own in trainer.policy.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_can_be_given_as_a_folder_in_the_config_and_as_an_object(family: str, tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path, family))
    trainers = [
        Trainer(supervised(), policy=folder, dataset=EXAMPLES),
        Trainer(supervised(policy=folder), dataset=EXAMPLES),
        Trainer(supervised(), policy=HuggingFacePolicy(folder), dataset=EXAMPLES),
        Trainer(supervised(), policy=AutoModelForCausalLM.from_pretrained(folder), dataset=EXAMPLES),
    ]
    before = weights_of(trainers[0])
    for trainer in trainers:
        assert isinstance(trainer.policy, CausalLM)
        assert trainer.config.policy == trainer.state.config["trainer"]["policy"] == folder
        trainer.train()
    first, *others = map(weights_of, trainers)
    assert all(not torch.equal(first[name], before[name]) for name in before)
    assert all(same(first, other) for other in others)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_trained_and_the_base_keeps_its_bits(family: str, tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path, family))
    trainer = Trainer(supervised(policy=folder, lora=LoraConfig(r=2), epochs=3), dataset=EXAMPLES)
    base = {name: own.clone() for name, own in trainer.policy.full_state_dict().items() if ".lora_" not in name}
    before = weights_of(trainer)
    trainer.train()
    assert all(not torch.equal(own, before[name]) for name, own in weights_of(trainer).items())
    after = trainer.policy.full_state_dict()
    assert all(torch.equal(after[name], own) for name, own in base.items())
    assert trainer.optimizer.state_dict()["state"].keys() == set(range(len(before)))


def test_a_peft_model_can_be_given_as_an_object(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    trainer = Trainer(supervised(), policy=model, dataset=EXAMPLES)
    trainer.train()
    assert trainer.config.lora == LoraConfig(2, 8.0, 0.0, ("q_proj", "v_proj"))
    assert len(weights_of(trainer)) == 2 * 2 * 2


def test_a_policy_given_twice_and_adapters_for_a_finished_model_are_errors(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(
        TrainerConfigError, match="the config's policy is 'elsewhere', but the trainer was given another"
    ):
        Trainer(supervised(policy="elsewhere"), policy=model, dataset=EXAMPLES)
    with pytest.raises(TrainerConfigError, match="lora adds adapters to a model that the trainer loads"):
        Trainer(supervised(lora=LoraConfig()), policy=model, dataset=EXAMPLES)


# -- against a plain loop ---------------------------------------------------------------------------------------------


def chunks_of_a_page(folder: Path, length: int = 24) -> tuple[list[dict[str, list[int]]], list[dict[str, list[int]]]]:
    """Examples for training and for validation from a page of our documentation. Some are shorter than others."""
    text = PAGE.read_text(encoding="utf-8")[:4000]
    tokens = tiny_tokenizer(folder, [text], vocabulary=400).encode(text)
    examples = [{"tokens": tokens[at : at + length - at % 5]} for at in range(0, len(tokens) - length, length)]
    return examples[8:], examples[:8]


def loss_of(model: Any, examples: list[dict[str, list[int]]]) -> torch.Tensor:
    """The mean cross-entropy of all tokens, one example at a time."""
    losses = []
    for example in examples:
        tokens = torch.tensor([example["tokens"]])
        logits = model(tokens).logits[0, :-1]
        losses.append(functional.cross_entropy(logits, tokens[0, 1:], reduction="none"))
    return torch.cat(losses).mean()


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_supervised_training_on_a_text_is_that_of_a_plain_loop(family: str, tmp_path: Path) -> None:
    dataset, validation = chunks_of_a_page(tmp_path)
    folder = tiny_model(tmp_path, family)
    epochs, size, rate, seed = 3, 8, 2e-3, 11

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    order = np.random.default_rng(seed)
    expected, expected_validation = [], [loss_of(model, validation).item()]
    for _ in range(epochs):
        indices = order.permutation(len(dataset))
        for start in range(0, len(dataset), size):
            optimizer.zero_grad()
            loss = loss_of(model, [dataset[index] for index in indices[start : start + size]])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            expected.append(loss.item())
        with torch.no_grad():
            expected_validation.append(loss_of(model, validation).item())

    recorder = Losses()
    plugins = PluginManager()
    plugins.register(recorder)
    config = TrainerConfig(
        epochs=epochs,
        seed=seed,
        policy=str(folder),
        optimizer=OptimizerConfig("adamw", rate, "constant", max_grad_norm=1.0),
        supervised=SupervisedConfig(batch_size=size, validate_every=-(-len(dataset) // size), validate_at_start=True),
    )
    Trainer(config, dataset=dataset, validation_dataset=validation, plugins=plugins).train()
    assert recorder.training == pytest.approx(expected, abs=1e-5)
    assert recorder.validation == pytest.approx(expected_validation, abs=1e-5)
    assert recorder.validation[-1] < recorder.validation[0] - 0.5


class Losses:
    """Records the losses of training and of validation."""

    def __init__(self) -> None:
        self.training: list[float] = []
        self.validation: list[float] = []

    @hookimpl
    def post_training_step(self, report_data: dict[str, float]) -> None:
        self.training.append(report_data["train/loss"])

    @hookimpl
    def post_validation(self, report_data: dict[str, float]) -> None:
        self.validation.append(report_data["val_avg_loss"])


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_gradient_checkpointing_and_accumulation_give_the_same_gradients(
    lora: LoraConfig | None, tmp_path: Path
) -> None:
    folder = str(tiny_model(tmp_path))
    found = []
    for learner in (LearnerConfig(), LearnerConfig(gradient_checkpointing=True, micro_batch_rows=2)):
        rates = OptimizerConfig("sgd", 0.1)
        config = supervised(policy=folder, lora=lora, learner=learner, epochs=1, optimizer=rates)
        trainer = Trainer(config, dataset=EXAMPLES)
        trainer.train()
        found.append(weights_of(trainer))
    for name, own in found[0].items():
        torch.testing.assert_close(found[1][name], own, atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_recomputes_the_layers(tmp_path: Path) -> None:
    module = HuggingFacePolicy(str(tiny_model(tmp_path))).torch_module()
    calls: list[int] = []
    module.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    module.gradient_checkpointing_enable()
    tokens = torch.randint(4, 300, (2, 6))
    module.token_logprobs(tokens, torch.ones_like(tokens, dtype=torch.bool)).sum().backward()
    assert len(calls) == 2


# -- rollouts ---------------------------------------------------------------------------------------------------------


def sums() -> CurriculumConfig:
    # Longer responses are better, so that the samples of a group differ.
    task = TextTask([("1+2=", "3"), ("12+34=", "46")], lambda _, response: float(len(response)), max_new_tokens=6)
    return CurriculumConfig([Lesson("sums", task)], micro_eval_frequency=None, eval_frequency=None)


def by_rollouts(**fields: Any) -> TrainerConfig:
    rollout = RolloutConfig(num_environments=2, samples_per_prompt=4, minibatches=1, update_epochs=1)
    return TrainerConfig(epochs=2, optimizer=OptimizerConfig(learning_rate=1e-3), rollout=rollout, **fields)


def test_grpo_trains_a_folder_and_a_model_object_alike(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    one = Trainer(by_rollouts(policy=folder), sums())
    other = Trainer(by_rollouts(), sums(), AutoModelForCausalLM.from_pretrained(folder))
    before = weights_of(one)
    for trainer in (one, other):
        trainer.train()
    assert not same(weights_of(one), before)
    assert same(weights_of(one), weights_of(other))


def test_grpo_trains_adapters_beside_a_reference_that_shares_the_base(tmp_path: Path) -> None:
    config = by_rollouts(policy=str(tiny_model(tmp_path)), lora=LoraConfig(r=2), losses={"grpo": {"kl": 0.1}})
    trainer = Trainer(config, sums())
    base = {name: own.clone() for name, own in trainer.policy.full_state_dict().items() if ".lora_" not in name}
    adapters = weights_of(trainer)
    trainer.train()
    (loss,) = trainer.learner.losses
    reference, own = loss._reference.policy.full_state_dict(), trainer.policy.full_state_dict()
    assert all(reference[name].data_ptr() == own[name].data_ptr() for name in base)
    assert all(torch.equal(own[name], before) for name, before in base.items())
    assert all(torch.equal(reference[name], before) for name, before in adapters.items())
    assert not same(weights_of(trainer), adapters)
