"""Perplexity and reward models: MLX and NumPy compute what transformers computes, and what happens where they cannot."""

from __future__ import annotations

import gc
import json
import logging
import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from safetensors.torch import load_file, save_file

from hookline import PluginManager
from hookline.rewards import (
    IntegratedRewardConfig,
    RewardConfig,
    RewardError,
    RolloutRewardProcessor,
    models_numpy,
)
from hookline.rewards import models as reward_models
from hookline.rewards.models import PerplexityModel, RewardModel
from hookline.testing import EventRecorder
from hookline.testing.tiny_models import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from hookline_hookspecs import Episode, Rollout, Turn

try:
    import mlx.core as mx

    from hookline.rewards import models_mlx
except ImportError:
    mx = models_mlx = None  # type: ignore[assignment]

NOTHING_ELSE: dict[str, Any] = dict.fromkeys(
    ("length_weight", "keyword_weight", "perplexity_weight", "accuracy_weight"), 0.0
)
ONLY_PERPLEXITY = {**NOTHING_ELSE, "perplexity_weight": 1.0}
EPISODES = [
    Episode(f"Question {number}: sum of two numbers?" * (1 + number % 3), "12+34=46 and a plugin. "[: 3 + 2 * number])
    for number in range(11)
]


HAS_GPU = mx is not None and mx.is_available(mx.gpu)
needs_mlx = pytest.mark.skipif(models_mlx is None, reason='pip install "hookline[mlx-lm]"')


@pytest.fixture(
    params=[
        pytest.param(None, id="mlx on a gpu" if HAS_GPU else "numpy"),
        pytest.param("cpu", id="mlx", marks=needs_mlx),
    ]
)
def device(request: pytest.FixtureRequest) -> Any:
    """The option `mlx_device`. Without it, NumPy scores where MLX has no GPU."""
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Makes a model of a family once, with a chat template if asked for."""
    made: dict[Any, str] = {}

    def make(family: str, *, chat: bool = False, labels: int | None = None, **changes: Any) -> str:
        key = (family, chat, labels, *changes.items())
        if key not in made:
            path = tmp_path_factory.mktemp(family)
            tiny_tokenizer(path, chat_template=CHAT_TEMPLATE if chat else None)
            made[key] = str(tiny_model(path, family, labels=labels, **changes))
        return made[key]

    return make


def rewards_of(episodes: Sequence[Episode], **config: Any) -> np.ndarray:
    processor = RolloutRewardProcessor(RewardConfig(**{**NOTHING_ELSE, **config}))
    return np.array(processor.process_episode_rewards(episodes))


def prompt_tokens(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    if tokenizer.chat_template:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    return list(tokenizer.encode("".join(message["content"] for message in messages)))


@cache
def by_transformers(path: str) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    return transformers.AutoTokenizer.from_pretrained(path), model


def torch_logprob(path: str, messages: list[dict[str, str]], response: str) -> float:
    """The mean log-probability of one response, by transformers' forward of one row without padding."""
    tokenizer, model = by_transformers(path)
    before, after = prompt_tokens(tokenizer, messages), tokenizer.encode(response, add_special_tokens=False)
    tokens = torch.tensor([before + after])
    with torch.no_grad():
        logprobs = model(tokens).logits.log_softmax(-1)[0, :-1].gather(-1, tokens[0, 1:, None])
    return float(logprobs[len(before) - 1 :].mean())


# -- perplexity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "chat"),
    [
        ("llama", False),
        ("qwen2", True),
        ("qwen3", False),
        ("qwen3", True),
        pytest.param("granite", False, marks=needs_mlx),
    ],
)
def test_perplexity_is_that_of_transformers(family: str, chat: bool, device: Any, folder: Callable[..., str]) -> None:
    # Granite scales its logits: a model that is more than a backbone and an output layer.
    path = folder(family, chat=chat, **({"logits_scaling": 3.0} if family == "granite" else {}))
    # Batches of 4 pad rows of different lengths; the last one has fewer rows.
    model = PerplexityModel("perplexity_model", path, RewardConfig(batch_size=4, mlx_device=device))
    by_numpy = device is None and not HAS_GPU and family != "granite"
    assert isinstance(model._scorer, (models_numpy if by_numpy else models_mlx).Perplexity)
    expected = [torch_logprob(path, [{"role": "user", "content": e.prompt}], e.response) for e in EPISODES]
    found = model.scores(EPISODES)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(np.exp(-found), np.exp(-np.array(expected)), rtol=1e-4)


def test_the_perplexity_reward_is_the_target_over_the_perplexity_and_at_most_1(folder: Callable[..., str]) -> None:
    path = folder("qwen3")
    perplexity = np.exp(-PerplexityModel("perplexity_model", path, RewardConfig()).scores(EPISODES))
    plain = rewards_of(EPISODES, perplexity_model=path, perplexity_weight=1.0)
    np.testing.assert_allclose(plain, 1 / perplexity, rtol=1e-5)
    target = float(np.median(perplexity))
    easier = rewards_of(EPISODES, perplexity_model=path, perplexity_weight=1.0, target_perplexity=target)
    np.testing.assert_allclose(easier, np.minimum(1, target / perplexity), rtol=1e-5)
    assert (easier == 1).sum() == 6


def test_a_response_of_several_turns_is_read_after_all_messages_before_it(
    device: Any, folder: Callable[..., str]
) -> None:
    path = folder("qwen3", chat=True)
    turns = (Turn("user", "7+5=?"), Turn("assistant", "12"), Turn("user", "And 80+19?"), Turn("assistant", "It is 99."))
    messages = [{"role": turn.role, "content": turn.text} for turn in turns[:-1]]
    model = PerplexityModel("perplexity_model", path, RewardConfig(mlx_device=device))
    (found,) = model.scores([Episode(turns=turns)])
    assert found == pytest.approx(torch_logprob(path, messages, "It is 99."), abs=1e-4)


def test_without_a_prompt_the_first_token_is_not_scored(device: Any, folder: Callable[..., str]) -> None:
    path = folder("qwen3")
    tokenizer, by_torch = by_transformers(path)
    first, *rest = tokenizer.encode("12+34=46", add_special_tokens=False)
    model = PerplexityModel("perplexity_model", path, RewardConfig(mlx_device=device))
    with torch.no_grad():
        logprobs = by_torch(torch.tensor([[first, *rest]])).logits[0].log_softmax(-1)
    expected = float(torch.stack([logprobs[place, token] for place, token in enumerate(rest)]).mean())
    scores = model.scores([Episode("", "12+34=46"), Episode("", "1")])
    assert scores[0] == pytest.approx(expected, abs=1e-4)
    assert math.isnan(scores[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_scored_near_those_in_float32(
    dtype: torch.dtype, device: Any, folder: Callable[..., str], tmp_path: Path
) -> None:
    path = folder("llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    model.to(dtype).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(path).save_pretrained(tmp_path)
    config = RewardConfig(mlx_device=device)
    found = PerplexityModel("perplexity_model", str(tmp_path), config).scores(EPISODES)
    np.testing.assert_allclose(found, PerplexityModel("perplexity_model", path, config).scores(EPISODES), atol=0.1)


# -- the policy's own log-probabilities --------------------------------------------------------------------------------


def recorded(response: str = "12", **changes: Any) -> Episode:
    """An episode of a rollout with two turns of the policy."""
    fields: dict[str, Any] = {
        "turns": (Turn("user", "5+7", 0, 2), Turn("assistant", "?", 2, 3), Turn("user", "!", 3, 4), Turn("assistant", response, 4, 6)),
        "tokens": np.arange(6),
        "mask": np.array([False, False, True, False, True, True]),
        "logprobs": np.array([0.0, 0.0, -9.0, 0.0, -1.0, -3.0]),
    }  # fmt: skip
    return Episode(**fields | changes)


def test_as_the_policy_a_perplexity_model_reads_what_the_response_recorded() -> None:
    config = {**ONLY_PERPLEXITY, "perplexity_model": "policy"}
    assert rewards_of([recorded()], **config) == pytest.approx([math.exp(-2)])
    # Top-k and top-p cut off half of the mass at each token: the policy itself gives each token half as much.
    cut = recorded(log_mass=np.full(6, math.log(0.5)))
    assert rewards_of([cut], **config) == pytest.approx([math.exp(-2) / 2])
    assert rewards_of([recorded()], **config, target_perplexity=3.0) == pytest.approx([3 * math.exp(-2)])


def test_as_the_policy_a_perplexity_model_guesses_nothing() -> None:
    config = {**ONLY_PERPLEXITY, "perplexity_model": "policy"}
    assert np.isnan(rewards_of([recorded(response="")], **config)).all()
    with pytest.raises(
        RewardError, match="episode 1 has no log-probabilities, and RewardConfig.perplexity_model is 'p"
    ):
        rewards_of([recorded(), Episode("p", "some words.")], **config)
    rewards = rewards_of([recorded(), Episode("p", "some words.")], **config, on_failure="not_applicable")
    assert np.isnan(rewards).tolist() == [False, True]


# -- reward models -----------------------------------------------------------------------------------------------------


def torch_logits(path: str, texts: list[list[int]]) -> np.ndarray:
    """The logits of one batch, padded on the right, by transformers."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path, dtype="float32").eval()
    longest = max(map(len, texts))
    padding = model.config.pad_token_id
    tokens = torch.tensor([text + [padding] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    with torch.no_grad():
        return model(tokens, attention_mask=mask).logits[:, 0].numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("family", "chat"), [("llama", True), ("qwen2", False), ("qwen3", True)])
def test_the_logits_of_a_reward_model_are_those_of_transformers(
    family: str, chat: bool, device: Any, folder: Callable[..., str]
) -> None:
    path = folder(family, chat=chat, labels=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": e.prompt}, {"role": "assistant", "content": e.response}], return_dict=False
        )
        if chat
        else [*tokenizer.encode(e.prompt), *tokenizer.encode(e.response), tokenizer.eos_token_id]
        for e in EPISODES
    ]
    found = RewardModel("reward_model", path, RewardConfig(batch_size=4, mlx_device=device)).scores(EPISODES)
    np.testing.assert_allclose(found, torch_logits(path, texts), atol=1e-4)
    assert found.std() > 0.05


def test_a_reward_model_that_pads_with_its_end_token_reads_the_token_before(device: Any, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, pad="<|end|>")
    path = str(tiny_model(tmp_path, "llama", labels=1))
    texts = [[*tokenizer.encode(e.prompt), *tokenizer.encode(e.response), tokenizer.eos_token_id] for e in EPISODES]
    found = RewardModel("reward_model", path, RewardConfig(mlx_device=device)).scores(EPISODES)
    np.testing.assert_allclose(found, torch_logits(path, texts), atol=1e-4)


def test_a_logit_becomes_a_reward_by_its_sigmoid_or_a_range(folder: Callable[..., str]) -> None:
    path = folder("qwen3", chat=True, labels=1)
    logits = RewardModel("reward_model", path, RewardConfig()).scores(EPISODES)
    np.testing.assert_allclose(rewards_of(EPISODES, reward_model=path), 1 / (1 + np.exp(-logits)), atol=1e-6)
    low, high = float(np.quantile(logits, 0.2)), float(np.quantile(logits, 0.8))
    clipped = np.clip((logits - low) / (high - low), 0, 1)
    np.testing.assert_allclose(
        rewards_of(EPISODES, reward_model=path, reward_model_range=(low, high)), clipped, atol=1e-6
    )
    assert {0.0, 1.0} <= set(clipped.tolist())


def test_a_reward_model_is_weighted_with_the_other_rewards(folder: Callable[..., str]) -> None:
    path = folder("qwen3", chat=True, labels=1)
    alone = rewards_of(EPISODES, reward_model=path)
    accuracy = rewards_of(EPISODES, accuracy_weight=1.0)
    both = rewards_of(EPISODES, reward_model=path, reward_model_weight=3.0, accuracy_weight=1.0)
    np.testing.assert_allclose(both, (3 * alone + accuracy) / 4, atol=1e-6)


def test_episodes_are_filtered_by_a_reward_model(folder: Callable[..., str]) -> None:
    from hookline.rewards import create_integrated_reward_system

    path = folder("qwen3", chat=True, labels=1)
    threshold = float(np.sort(rewards_of(EPISODES, reward_model=path))[4:6].mean())
    config = IntegratedRewardConfig(
        RewardConfig(**NOTHING_ELSE, reward_model=path),
        enable_verification=False,
        min_reward_threshold=threshold,
        batch_size=4,
    )
    with create_integrated_reward_system(config, PluginManager()) as system:
        rewards, accepted, rejected = system.process_episodes(EPISODES)
    assert (len(accepted), len(rejected)) == (6, 5)
    assert [episode.reward for episode in EPISODES] == pytest.approx(rewards.tolist())


# -- what does not apply, and what fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["perplexity_model", "reward_model"])
def test_a_model_does_not_apply_to_an_empty_response(option: str, folder: Callable[..., str]) -> None:
    path = folder("qwen3", labels=1 if option == "reward_model" else None)
    episodes = [Episode("p", ""), Episode("p", " \n"), Episode("p", "12")]
    alone = rewards_of(episodes, perplexity_weight=1.0 if option == "perplexity_model" else 0.0, **{option: path})
    assert np.isnan(alone).tolist() == [True, True, False]
    # The other rewards of an empty response are 0, and stay so.
    with_length = rewards_of(episodes, length_weight=1.0, perplexity_weight=1.0, **{option: path})
    assert with_length[:2].tolist() == [0.0, 0.0]


def test_an_episode_longer_than_the_context_is_an_error_or_does_not_apply(
    folder: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    path = folder("qwen3")
    tokens = len(transformers.AutoTokenizer.from_pretrained(path).encode("12+34=46 " * 40))
    episodes = [EPISODES[0], Episode("", "12+34=46 " * 40)]
    problem = f"RewardConfig.perplexity_model, episode 1: it has {tokens} tokens, and the model's context is 128"
    with pytest.raises(RewardError, match=problem):
        rewards_of(episodes, perplexity_model=path, perplexity_weight=1.0)
    rewards = rewards_of(episodes, perplexity_model=path, perplexity_weight=1.0, on_failure="not_applicable")
    assert np.isnan(rewards).tolist() == [False, True]
    assert f"{problem}; no reward from it" in caplog.text


@pytest.mark.parametrize("on_failure", ["raise", "not_applicable"])
def test_an_output_that_is_no_number_is_an_error_or_does_not_apply(
    on_failure: str, device: Any, folder: Callable[..., str], tmp_path: Path
) -> None:
    path = Path(folder("qwen3"))
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    options = {"perplexity_model": str(tmp_path), "on_failure": on_failure, "mlx_device": device}
    config = RewardConfig(**ONLY_PERPLEXITY, **options)
    processor = RolloutRewardProcessor(config)
    if on_failure == "raise":
        with pytest.raises(
            RewardError, match="RewardConfig.perplexity_model, episode 0: the model's output is not a n"
        ):
            processor.process_episode_rewards(EPISODES)
    else:
        assert np.isnan(np.array(processor.process_episode_rewards(EPISODES))).all()


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_a_library_that_fails_is_an_error_or_does_not_apply(
    kind: type[Exception], device: Any, folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> Any:
        raise kind("[malloc] Unable to allocate 10 bytes.")

    path = folder("qwen3")
    for library in filter(None, (models_mlx, models_numpy)):
        monkeypatch.setattr(library.Perplexity, "run", exhausted)
    with pytest.raises(
        RewardError, match=rf"RewardConfig.perplexity_model failed on 11 episodes: {kind.__name__}: \[malloc\]"
    ):
        PerplexityModel("perplexity_model", path, RewardConfig(mlx_device=device)).scores(EPISODES)
    config = RewardConfig(on_failure="not_applicable", mlx_device=device)
    assert np.isnan(PerplexityModel("perplexity_model", path, config).scores(EPISODES)).all()


def test_a_role_that_the_chat_template_refuses_is_an_error_with_the_episode(tmp_path: Path) -> None:
    refuses = "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}" + CHAT_TEMPLATE
    tiny_tokenizer(tmp_path, chat_template=refuses)
    path = str(tiny_model(tmp_path, labels=1))
    episodes = [EPISODES[0], Episode(turns=(Turn("tool", "4"), Turn("assistant", "four")))]
    with pytest.raises(
        RewardError, match="reward_model, episode 1: the chat template refuses the messages.*no tools here"
    ):
        RewardModel("reward_model", path, RewardConfig()).scores(episodes)
    scores = RewardModel("reward_model", path, RewardConfig(on_failure="not_applicable")).scores(episodes)
    assert np.isnan(scores).tolist() == [False, True]


def test_a_token_outside_of_the_vocabulary_is_an_error_with_the_episode(folder: Callable[..., str]) -> None:
    path = folder("qwen3", vocab_size=280)
    with pytest.raises(
        RewardError, match=r"episode 0: token 2\d\d of its tokenizer is not in the model's vocabulary of 280"
    ):
        PerplexityModel("perplexity_model", path, RewardConfig()).scores([Episode("A plugin listens", "to the events")])


def without(path: str, to: Path, *names: str) -> str:
    to.mkdir()
    for file in Path(path).iterdir():
        if not file.name.startswith(names):
            (to / file.name).write_bytes(file.read_bytes())
    return str(to)


def test_a_folder_that_holds_no_such_model_is_an_error_that_says_why(
    folder: Callable[..., str], tmp_path: Path
) -> None:
    causal = folder("qwen3")
    unknown = without(causal, tmp_path / "unknown")
    config = json.loads((tmp_path / "unknown" / "config.json").read_text())
    (tmp_path / "unknown" / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    problems = {
        ("perplexity_model", str(tmp_path / "nowhere")): "the folder '.*nowhere' does not exist; `hf download NAME",
        ("perplexity_model", str(tmp_path)): "has no config.json, so it holds no model",
        ("perplexity_model", without(causal, tmp_path / "mute", "tokenizer")): "the folder has no tokenizer: save it",
        ("perplexity_model", without(causal, tmp_path / "empty", "model")): "cannot be loaded: .*No safetensors found",
        ("reward_model", causal): "it has no score.weight, as a sequence classifier of transformers has",
        ("reward_model", folder("llama", labels=2)): "it has 2 labels, and a reward model has one",
    }
    if models_mlx is not None:  # which is asked for whatever NumPy does not have
        problems["perplexity_model", unknown] = "cannot be loaded: .*abacus"
    for (option, path), problem in problems.items():
        with pytest.raises(RewardError, match=f"RewardConfig.{option}: .*{problem}"):
            RolloutRewardProcessor(RewardConfig(**{option: path}))


@needs_mlx
def test_a_sliding_window_that_mlx_lm_ignores_is_an_error(folder: Callable[..., str]) -> None:
    path = folder("mistral", sliding_window=16)
    with pytest.raises(RewardError, match="cannot be loaded: .*sliding window of 16 tokens .* context of 128, and mlx"):
        PerplexityModel("perplexity_model", path, RewardConfig(mlx_device="cpu"))


@needs_mlx
def test_a_gpu_that_is_not_there_is_an_error(folder: Callable[..., str]) -> None:
    path = folder("qwen3")
    if not HAS_GPU:
        with pytest.raises(RewardError, match="RewardConfig.mlx_device is 'gpu', but this MLX has none; use 'cpu'"):
            RolloutRewardProcessor(RewardConfig(perplexity_model=path, mlx_device="gpu"))


@needs_mlx
@pytest.mark.parametrize(("missing", "extra"), [("mlx.core", "mlx-lm"), ("mlx_lm", "mlx-lm"), ("transformers", "hf")])
def test_a_missing_package_is_an_error_that_says_what_to_install(
    missing: str, extra: str, folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder("qwen3")
    monkeypatch.setitem(sys.modules, missing, None)
    problem = rf'RewardConfig.perplexity_model needs .* pip install "hookline\[{extra}\]"'
    with pytest.raises(ImportError, match=problem):
        RolloutRewardProcessor(RewardConfig(perplexity_model=path, mlx_device="cpu"))


@needs_mlx
def test_numpy_scores_where_mlx_is_not_installed(folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder("qwen3")
    expected = rewards_of(EPISODES, perplexity_model=path, perplexity_weight=1.0, mlx_device="cpu")
    for package in ("mlx.core", "mlx_lm"):
        monkeypatch.setitem(sys.modules, package, None)
    rewards = rewards_of(EPISODES, perplexity_model=path, perplexity_weight=1.0)
    np.testing.assert_allclose(rewards, expected, atol=1e-4)


def test_quantized_weights_are_for_mlx(folder: Callable[..., str], tmp_path: Path) -> None:
    path = Path(without(folder("qwen3"), tmp_path / "quantized", "nothing"))
    config = json.loads((path / "config.json").read_text())
    assert models_numpy.supports(path)
    (path / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 64, "bits": 4}}))
    assert not models_numpy.supports(path)


# -- batches, memory, cache --------------------------------------------------------------------------------------------


def batches(caplog: pytest.LogCaptureFixture) -> list[int]:
    """How many episodes each batch of a model had."""
    return [record.args[0] for record in caplog.records if "MB" in record.message and record.levelname == "DEBUG"]  # type: ignore[misc]


@needs_mlx
def test_a_conversation_is_scored_once_in_a_run(
    folder: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PerplexityModel("perplexity_model", folder("qwen3"), RewardConfig(batch_size=32, mlx_device="cpu"))
    with caplog.at_level(logging.DEBUG, "hookline.rewards"):
        first = model.scores(EPISODES + EPISODES)
        assert sum(batches(caplog)) == 11
        again = model.scores([Episode("new", "one"), *EPISODES])
        other_prompt = model.scores([Episode("other", EPISODES[5].response)])
    assert sum(batches(caplog)) == 13
    np.testing.assert_array_equal(first[:11], first[11:])
    np.testing.assert_array_equal(first[:11], again[1:])
    assert other_prompt[0] != first[5]
    monkeypatch.setattr(reward_models, "CACHED", 3)
    model.scores([Episode("newest", "two")])
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "hookline.rewards"):
        model.scores([Episode("newest", "two"), EPISODES[0]])
    assert batches(caplog) == [1]  # the oldest were dropped


def test_a_restored_system_gives_the_rewards_of_one_that_went_on_bit_for_bit(
    device: Any, folder: Callable[..., str]
) -> None:
    from hookline.rewards import create_integrated_reward_system

    options: dict[str, Any] = {
        "perplexity_model": folder("qwen3"),
        "reward_model": folder("qwen3", chat=True, labels=1),
    }
    options |= {"mlx_device": device}
    config = IntegratedRewardConfig(
        RewardConfig(**{**ONLY_PERPLEXITY, **options}), enable_verification=False, min_reward_threshold=0.0
    )

    def rollout(part: slice) -> Rollout:
        return Rollout(episodes=[Episode(episode.prompt, episode.response, reward=0.5) for episode in EPISODES[part]])

    first, second, again = rollout(slice(7)), rollout(slice(4, 11)), rollout(slice(4, 11))
    with create_integrated_reward_system(config, PluginManager()) as goes_on:
        goes_on.process_rollout(first)
        state = goes_on.state_dict()
        goes_on.process_rollout(second)
    with create_integrated_reward_system(config, PluginManager()) as restored:
        restored.load_state_dict(state)
        restored.process_rollout(again)
        assert len(restored.state_dict()["processor"]["perplexity_model"]["scores"]) == 11
    np.testing.assert_array_equal(again.arrays["rewards"], second.arrays["rewards"])


@needs_mlx
def test_scores_of_another_folder_or_library_are_not_taken_over(folder: Callable[..., str]) -> None:
    path = folder("qwen3")

    def model(path: str, device: Any = None) -> PerplexityModel:
        return PerplexityModel("perplexity_model", path, RewardConfig(mlx_device=device))

    other, by_default, by_mlx = model(folder("llama")), model(path), model(path, "cpu")
    for own in (other, by_default, by_mlx):
        own.scores(EPISODES)
    for saved, device in [(other, None), (other, "cpu"), (by_default, "cpu"), (by_mlx, None)]:
        restored = model(path, device)
        restored.load_state_dict(saved.state_dict())
        is_same = HAS_GPU and saved is not other
        assert len(restored.state_dict()["scores"]) == (len(EPISODES) if is_same else 0)
        np.testing.assert_allclose(restored.scores(EPISODES), by_mlx.scores(EPISODES), atol=1e-4)
    before = {name: value for name, value in by_default.state_dict().items() if name != "source"}
    by_mlx.load_state_dict(before)  # as checkpoints were that did not say whose scores they have


@needs_mlx
def test_a_batch_has_rows_of_similar_length(folder: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    model = PerplexityModel("perplexity_model", folder("qwen3"), RewardConfig(batch_size=8, mlx_device="cpu"))
    model.scores([Episode("first", "12")])
    lengths = [10, 90, 11, 12, 13, 12, 12, 100, 12, 13, 13]
    episodes = [Episode(str(place), "+" * length) for place, length in enumerate(lengths)]
    with caplog.at_level(logging.DEBUG, "hookline.rewards"):
        together = model.scores(episodes)
    assert batches(caplog) == [8, 1, 2]
    one_by_one = RewardConfig(batch_size=1, mlx_device="cpu")
    apart = PerplexityModel("perplexity_model", folder("qwen3"), one_by_one).scores(episodes)
    np.testing.assert_allclose(together, apart, atol=1e-5)


@needs_mlx
def test_batches_that_would_exceed_the_memory_limit_are_split(
    folder: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    path, before = folder("qwen3"), mx.get_memory_limit()
    same_length = [Episode("Prompt: sum?", f"12+34={number}") for number in range(10, 74)]
    gc.collect()
    others = mx.get_active_memory()
    with caplog.at_level(logging.DEBUG, "hookline.rewards"):
        unlimited = PerplexityModel("perplexity_model", path, RewardConfig(mlx_device="cpu"))
        weights = mx.get_active_memory() - others
        unlimited.scores(same_length[:1])
        a_row = mx.get_peak_memory() - mx.get_active_memory()
        plain = unlimited.scores(same_length)
        assert batches(caplog) == [1, 32, 31]  # the last batch has one row of padding
        caplog.clear()
        limit = mx.get_active_memory() + weights + 6 * a_row
        config = RewardConfig(mlx_memory_limit=limit, mlx_device="cpu")
        limited = PerplexityModel("perplexity_model", path, config).scores(same_length)
        sizes = batches(caplog)
        assert sum(sizes) == 64
        assert 2 <= max(sizes) < 32
        assert mx.get_peak_memory() <= limit
        assert "above the memory limit" not in caplog.text
        caplog.clear()
        config = RewardConfig(mlx_memory_limit=1, mlx_device="cpu")
        one_by_one = PerplexityModel("perplexity_model", path, config).scores(same_length[:4])
    assert batches(caplog) == [1, 1, 1, 1]
    assert "above the memory limit of 0 MB, and cannot be split" in caplog.text
    np.testing.assert_allclose(limited, plain, atol=1e-5)
    np.testing.assert_allclose(one_by_one, plain[:4], atol=1e-5)
    assert mx.get_memory_limit() == before


def test_logits_are_computed_for_a_few_tokens_at_a_time(
    device: Any, folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = folder("llama"), RewardConfig(mlx_device=device)
    whole = PerplexityModel("perplexity_model", path, config).scores(EPISODES)
    for library in filter(None, (models_mlx, models_numpy)):
        monkeypatch.setattr(library, "LOGITS_AT_ONCE", 2000)
    monkeypatch.setattr(models_numpy, "TOKENS_AT_ONCE", 50)
    parts = PerplexityModel("perplexity_model", path, config).scores(EPISODES)
    np.testing.assert_allclose(parts, whole, atol=1e-5)


def test_models_score_after_all_batches_were_announced(
    folder: Callable[..., str], hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    config = RewardConfig(**ONLY_PERPLEXITY, perplexity_model=folder("qwen3"), batch_size=6)
    rewards = RolloutRewardProcessor(config, hookline_manager).process_episode_rewards(EPISODES)
    assert hookline_events.names() == ["pre_rewards"] * 2 + ["score_episodes", "post_rewards"] * 2
    assert np.array(rewards).tolist() == pytest.approx([episode.reward for episode in EPISODES])


def test_the_code_of_the_documentation_runs(
    folder: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    without(folder("llama"), tmp_path / "models" / "language", "nothing")
    without(folder("qwen3", chat=True, labels=1), tmp_path / "models" / "reward", "nothing")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    found = []
    for block in re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        exec(block, names)
        found.append(np.array(names["rewards"]).tolist())
    assert [len(rewards) for rewards in found] == [1, 2]
    assert 0 < found[0][0] < 1
    assert found[1] == pytest.approx([1.0, 0.772917], abs=1e-5)
