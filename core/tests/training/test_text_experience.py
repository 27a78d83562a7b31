"""From episodes to rows that losses can train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from hookline import PluginManager, hookimpl
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer, Limits, TextProblem, TextTask
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig
from hookline.training.errors import ExperienceError
from hookline.training.experience import Experience, join_rollouts
from hookline.training.losses import Field, Loss, SharedLossData
from hookline.training.losses.grpo import GRPO, GRPOConfig
from hookline_hookspecs import Episode, Rollout, TrainerState, Turn

TOKENIZER = CharacterTokenizer("0123456789+=")
POLICY = TransformerPolicy(TOKENIZER.size, width=16, layers=1, heads=2, context=16)


def episode(tokens: list[int], trained: list[bool], **fields: Any) -> Episode:
    return Episode(
        tokens=np.array(tokens, np.int32),
        mask=np.array(trained),
        logprobs=np.where(trained, -0.5, 0.0).astype(np.float32),
        **fields,
    )


def rollout(*episodes: Episode, version: int = 0) -> Rollout:
    return Rollout(None, version, {"rewards": np.arange(len(episodes), dtype=np.float32)}, list(episodes))


def text_worker(environment: Any = None, **fields: Any) -> RolloutWorker:
    lesson = Lesson("sums", environment or TextTask(ArithmeticProblems((1, 2)), max_new_tokens=4))
    curriculum = CurriculumConfig([lesson], micro_eval_frequency=None, eval_frequency=None)
    return RolloutWorker(
        RolloutWorkerConfig(curriculum, policy=POLICY, tokenizer=TOKENIZER, num_environments=4, **fields)
    )


def test_the_mask_of_trained_tokens_is_the_episodes_own() -> None:
    """Two turns of the policy with one of a tool between them."""
    conversation = episode(
        [5, 6, 7, 8, 9, 3],
        [False, True, True, False, True, True],
        turns=[
            Turn("user", "a", 0, 1),
            Turn("assistant", "b", 1, 3),
            Turn("tool", "c", 3, 4),
            Turn("assistant", "d", 4, 6),
        ],
    )
    arrays, grid = join_rollouts([rollout(conversation, episode([4, 2], [False, True]))])
    assert grid == (2,)
    assert arrays["tokens"].tolist() == [[5, 6, 7, 8, 9, 3], [4, 2, 0, 0, 0, 0]]
    assert arrays["valid"].tolist() == [[True] * 6, [True] * 2 + [False] * 4]
    assert arrays["loss_mask"].tolist() == [[False, True, True, False, True, True], [False, True] + [False] * 4]
    assert arrays["logprobs"].tolist() == [[-0.5, -0.5, 0.0, -0.5, -0.5], [-0.5, 0.0, 0.0, 0.0, 0.0]]


def test_a_response_to_nothing_is_trained_from_its_first_token_on() -> None:
    arrays, _ = join_rollouts([rollout(episode([5, 6], [True, True]), episode([4, 2], [False, True]))])
    assert arrays["tokens"].tolist() == [[0, 5, 6], [0, 4, 2]]
    assert arrays["loss_mask"][:, 1:].tolist() == [[True, True], [False, True]]


def test_an_episode_that_failed_at_once_has_a_row_that_nothing_is_trained_in() -> None:
    arrays, grid = join_rollouts([rollout(episode([], []), episode([4, 2], [False, True])), rollout(episode([], []))])
    assert grid == (3,)
    assert arrays["tokens"].tolist() == [[0, 0], [4, 2], [0, 0]]
    assert arrays["valid"].tolist() == [[True, False], [True, True], [True, False]]
    assert arrays["loss_mask"].any(1).tolist() == [False, True, False]
    arrays, _ = join_rollouts([rollout(episode([], []))])
    assert arrays["tokens"].tolist() == [[0]]


class Unreliable:
    """Fails in some of its conversations, or in all."""

    limits = Limits(max_turns=2, max_new_tokens=3)

    def __init__(self, share: float) -> None:
        self.share = share

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        if self.share == 1:
            raise ConnectionError("the archive is closed")
        return TextProblem(metadata={"fails": rng.random() < self.share})

    def converse(self, problem: TextProblem) -> Any:
        first = yield "1+1="
        second = yield "="
        if problem.metadata["fails"]:
            raise ConnectionError("no reply")
        return float(len(first) > len(second))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_run_goes_on_when_environments_fail_and_trains_on_the_others_alone(
    share: float, kl: float, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = RolloutConfig(minibatches=2, update_epochs=1)
    config = TrainerConfig(2, losses={"grpo": {"kl": kl}}, optimizer=OptimizerConfig("adam"), rollout=rollouts)
    module = POLICY.torch_module(POLICY.initial_weights(0))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    worker = text_worker(Unreliable(share), sampling=SamplingConfig(4))
    state = Trainer(config, policy=module, worker=worker).train()
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())
    has_changed = any(not torch.equal(own, before[name]) for name, own in module.state_dict().items())
    assert has_changed == (share < 1)
    assert (state.rollout_stats["rollout/failed"] == 16) == (share == 1)
    assert "rollout/failed" in caplog.text


def test_groups_of_several_rollouts_stay_apart() -> None:
    one, two = (episode([1, 2], [False, True], group=group) for group in (0, 1))
    alone = episode([1, 2], [False, True])
    arrays, _ = join_rollouts([rollout(two, one, two), rollout(one, alone, one), rollout(alone)])
    assert arrays["groups"].tolist() == [0, 1, 0, 2, 3, 2, 4]


def test_each_row_knows_the_version_of_its_weights() -> None:
    stamped = episode([1, 2], [False, True], weights_version=4)
    in_the_middle = episode([1, 2], [False, True], weights_version=np.array([3, 2]))
    arrays, _ = join_rollouts([rollout(stamped, in_the_middle, version=3), rollout(episode([1], [False]), version=9)])
    assert arrays["weights_version"].dtype == torch.int64
    assert arrays["weights_version"].tolist() == [4, 2, 9], "that of the oldest token"
    control = [Rollout(arrays={"rewards": np.zeros((3, 2), np.float32)}, weights_version=version) for version in (1, 5)]
    arrays, grid = join_rollouts(control)
    assert grid == (3, 4)
    assert arrays["weights_version"].tolist() == [[1, 1, 5, 5]] * 3


def test_text_and_control_in_one_epoch_are_an_error() -> None:
    control = Rollout(arrays={"rewards": np.zeros((3, 2), np.float32)})
    with pytest.raises(ExperienceError, match="the rollouts of an epoch mix text and control"):
        join_rollouts([rollout(episode([1, 2], [False, True])), control])


def test_a_loss_that_asks_for_it_is_told_the_version_of_each_row() -> None:
    """Two rollouts of one epoch, between which the worker takes new weights, as it would ahead of a trainer."""
    seen: list[list[int]] = []

    class Stale(Loss):
        def get_experience_spec(self) -> Mapping[str, Field]:
            return {"tokens": Field("int64"), "valid": Field("bool"), "weights_version": Field("int64", ())}

        def run_rollout(self, shared: SharedLossData) -> None:
            assert shared.experience is not None
            seen.append(shared.experience["weights_version"].tolist())

        def run_train(self, shared: SharedLossData) -> torch.Tensor:
            return shared.policy(shared.batch["tokens"], shared.batch["valid"]).mean()

    class NewWeights:
        @hookimpl
        def register_losses(self) -> dict[str, type[Loss]]:
            return {"stale": Stale}

        @hookimpl
        def on_rollout_end(self, context: Any) -> None:
            worker.update_weights(POLICY.initial_weights(worker.step), version=10 * worker.step)

    worker = text_worker()
    worker.plugins.register(NewWeights())
    config = TrainerConfig(1, losses={"stale": {}}, rollout=RolloutConfig(rollouts_per_epoch=2, minibatches=2))
    Trainer(config, worker=worker).train()
    assert seen == [[0] * 4 + [10] * 4]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(4), SamplingConfig(4, temperature=0.7), SamplingConfig(4, temperature=1.6),
        SamplingConfig(4, temperature=0.7, top_k=4), SamplingConfig(4, temperature=0.7, top_k=8, top_p=0.8),
    ],
    ids=str,
)  # fmt: skip
def test_before_the_first_gradient_step_the_ratio_is_1_for_all_trained_tokens(sampling: SamplingConfig) -> None:
    worker = text_worker(sampling=sampling)
    # Larger than fresh ones, so that temperature and truncation matter.
    weights = {name: 5 * array for name, array in POLICY.initial_weights(1).items()}
    worker.update_weights(weights, version=1)
    arrays, grid = join_rollouts([worker.rollout(), worker.rollout()])
    loss = GRPO("grpo", GRPOConfig())
    experience = Experience([loss])
    experience.fill(arrays, grid)
    batch = experience.flat()
    logprobs = POLICY.torch_module(weights).token_logprobs(batch["tokens"], batch["valid"], batch.get("temperature"))
    ratio = (logprobs - batch["logprobs"]).exp()[batch["loss_mask"][:, 1:]]
    assert len(ratio) > 30
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)
    # And so it is in the loss itself, whose value is then minus the mean advantage.
    batch["advantages"] = torch.linspace(-1, 1, len(batch["tokens"]))
    module = POLICY.torch_module(weights)
    loss.attach_policy(module)
    found = loss.run_train(SharedLossData(TrainerState(), module, batch))
    mask = batch["loss_mask"][:, 1:]
    assert found.item() == pytest.approx(
        -(batch["advantages"][:, None] * mask).sum().item() / mask.sum().item(), abs=1e-4
    )


def test_at_a_temperature_the_policys_own_distribution_would_not_do() -> None:
    """What the ratio would be, were the trainer not told the temperature."""
    worker = text_worker(sampling=SamplingConfig(temperature=0.7))
    weights = {name: 5 * array for name, array in POLICY.initial_weights(1).items()}
    worker.update_weights(weights, version=1)
    arrays, _ = join_rollouts([worker.rollout()])
    logprobs = POLICY.torch_module(weights).token_logprobs(arrays["tokens"], arrays["valid"])
    ratio = (logprobs - arrays["logprobs"]).exp()[arrays["loss_mask"][:, 1:]]
    assert (ratio - 1).abs().max() > 0.1


def test_a_kl_at_a_temperature_is_0_where_the_policy_is_the_reference() -> None:
    worker = text_worker(sampling=SamplingConfig(2, temperature=0.7))
    with PluginManager() as plugins:
        config = TrainerConfig(1, losses={"grpo": {}, "kl": {}}, rollout=RolloutConfig(minibatches=1, update_epochs=1))
        module = POLICY.torch_module(POLICY.initial_weights(0))
        state = Trainer(config, policy=module, worker=worker, plugins=plugins).train()
    assert state.loss_stats["train/kl"] == pytest.approx(0.0, abs=1e-6)
