"""Every engine passes `check_engine`, for each family of models that it supports."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from hookline import PluginManager, hookimpl
from hookline.policies import HuggingFacePolicy, LoraConfig, MLPPolicy, PolicyError, TransformerPolicy, WeightsError
from hookline.policies.protocol import Discrete
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.engines import EngineError, EngineFactory, EngineRequest, Generated
from hookline.rollout.engines.registry import build_engine
from hookline.rollout.errors import RolloutError
from hookline.rollout.text import CharacterTokenizer, TextTask
from hookline.testing import check_engine
from hookline.testing.tiny_models import tiny_model
from hookline_hookspecs import EvaluationRequest

EXAMPLES = Path(__file__).parents[3] / "examples"
PAGE = Path(__file__).parents[3] / "docs" / "engines.md"
SMALL = TransformerPolicy(vocabulary=48, width=32, layers=1, heads=4, context=48)
SPEAKER = TransformerPolicy(CharacterTokenizer().size, width=16, layers=1, heads=2, context=16)
COUNT = Lesson("count", TextTask([("1 2 3", "4"), ("2 3", "4")], max_new_tokens=3))


def engine(name: str) -> EngineFactory:
    return lambda request: build_engine(name, request, PluginManager())


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model. It has one layer, because JAX compiles each layer anew, for each of many kinds of sampling; and two
    in one family."""
    layers = {"gpt2": {"n_layer": 1}, "mistral": {"num_hidden_layers": 2}}
    return lambda family, **changes: tiny_model(
        tmp_path / family, family, vocab_size=48, **{**layers.get(family, {"num_hidden_layers": 1}), **changes}
    )


def request_for(policy: Any, **more: Any) -> EngineRequest:
    module = policy.torch_module()
    with torch.no_grad():
        for own in module.parameters():
            if own.requires_grad and isinstance(policy, TransformerPolicy):
                own *= 4
            elif own.requires_grad and policy.lora is not None:
                own += 0.1 * torch.randn(own.shape, generator=torch.Generator().manual_seed(1))
    return EngineRequest(policy, module, **more)


def test_the_jax_engine_passes_with_a_transformer_of_ours() -> None:
    check_engine(engine("jax"), request_for(SMALL))


@pytest.mark.parametrize("name", ["jax", "transformers", "mlx"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_an_engine_passes_with_a_hugging_face_model(name: str, family: str, folder: Callable[..., Path]) -> None:
    if name == "mlx":
        pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    check_engine(engine(name), request_for(HuggingFacePolicy(str(folder(family)))))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 3e4, "factor": 2.5},
        {
            "rope_type": "llama3", "rope_theta": 7e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
)  # fmt: skip
def test_mlx_passes_with_scaled_positions(rope: dict[str, Any], folder: Callable[..., Path]) -> None:
    pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    check_engine(engine("mlx"), request_for(HuggingFacePolicy(str(folder("llama", rope_parameters=rope)))))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}),
        ("gemma2", {"sliding_window": 16, "num_key_value_heads": 2, "head_dim": 16}),
    ],
)
def test_mlx_refuses_a_sliding_window_that_mlx_lm_ignores(
    family: str, changes: dict[str, Any], folder: Callable[..., Path]
) -> None:
    pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    path = str(folder(family, **changes))
    with pytest.raises(
        EngineError, match=r"sliding window of 16 tokens is shorter than its context of 128.* engine = \"transformers\""
    ):
        engine("mlx")(EngineRequest(HuggingFacePolicy(path)))
    wide = str(folder(family, **{**changes, "sliding_window": 128}))
    assert engine("mlx")(EngineRequest(HuggingFacePolicy(wide))).context == 128


def test_mlx_refuses_a_family_that_mlx_lm_does_not_know(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    policy = HuggingFacePolicy(str(recurrent_model("rwkv", tmp_path)))
    with pytest.raises(
        EngineError, match=r"the mlx engine cannot load .*rwkv not supported.* engine = \"transformers\""
    ):
        engine("mlx")(EngineRequest(policy))


@pytest.mark.parametrize("name", ["jax", "transformers", "mlx"])
def test_an_engine_passes_with_adapters_on_a_frozen_base(name: str, folder: Callable[..., Path]) -> None:
    if name == "mlx":
        pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    check_engine(engine(name), request_for(HuggingFacePolicy(str(folder("qwen3")), LoraConfig(r=4, alpha=8.0))))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        ({"options": {"use_rslora": True}}, None),
        ({"target_modules": ("q_proj", "lm_head")}, None),
        ({"target_modules": ("q_proj", "lm_head"), "tied": True}, "adapters .*such as lm_head.lora_A.weight"),
        ({"target_modules": ("embed_tokens",)}, "adapters .*such as model.embed_tokens.lora_embedding_A"),
        ({"options": {"rank_pattern": {"q_proj": 2}}}, "adapters .*the options rank_pattern"),
        ({"options": {"alpha_pattern": {"q_proj": 64}}}, "adapters .*the options alpha_pattern"),
        ({"options": {"use_dora": True}}, "adapters"),
        ({"options": {"bias": "lora_only"}}, "adapters .*the options bias"),
        ({"options": {"modules_to_save": ["lm_head"]}}, "adapters .*the options modules_to_save"),
    ],
)
def test_adapters_of_all_kinds_are_sampled_with_and_engines_without_them_refuse(
    lora: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path, num_hidden_layers=1, tie_word_embeddings=lora.pop("tied", False))
    request = request_for(HuggingFacePolicy(str(model), LoraConfig(r=4, alpha=6.0, **lora)))
    names = ["auto", "jax", "mlx"] if importlib.util.find_spec("mlx_lm") else ["auto", "jax"]
    for name in names:
        if reason is not None and name != "auto":
            with pytest.raises(
                (EngineError, PolicyError), match=f'{name}.* engine .*{reason}.* engine = "transformers"'
            ):
                build_engine(name, request, PluginManager())
            continue
        prompts = [[5, 6, 7], [9, 4]]
        made = build_engine(name, request, PluginManager()).generate(
            prompts, SamplingConfig(1), jax.random.key(0), max_new_tokens=6
        )
        for prompt, tokens, logprobs in zip(prompts, made.tokens, made.logprobs, strict=True):
            row = torch.tensor([[*prompt, *tokens.tolist()]])
            with torch.no_grad():
                expected = request.module.model.eval()(row).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
            expected = expected.gather(1, torch.from_numpy(tokens).long()[:, None])[:, 0]
            np.testing.assert_allclose(logprobs, expected, atol=1e-4)


@pytest.mark.parametrize(("name", "family"), [("transformers", "mamba"), ("mlx", "mamba"), ("transformers", "rwkv")])
def test_an_engine_passes_with_a_recurrent_model_whose_cache_has_no_padding(
    name: str, family: str, tmp_path: Path
) -> None:
    if name == "mlx":
        pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    check_engine(engine(name), request_for(HuggingFacePolicy(str(recurrent_model(family, tmp_path)))))


def test_transformers_refuses_a_model_that_its_cache_disturbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for(HuggingFacePolicy(str(recurrent_model("rwkv", tmp_path))))
    forward = request.module.model.forward

    def forgets(*arguments: Any, state: Any = None, **more: Any) -> Any:
        return forward(*arguments, **more)

    monkeypatch.setattr(request.module.model, "forward", forgets)
    with pytest.raises(EngineError, match="cannot generate with a RwkvForCausalLM: with its cache, tokens after the"):
        engine("transformers")(request).generate([[3, 4]], SamplingConfig(), jax.random.key(0), max_new_tokens=2)


def recurrent_model(family: str, folder: Path) -> Path:
    own = {"state_size": 4, "time_step_rank": 4} if family == "mamba" else {"context_length": 64}
    config = AutoConfig.for_model(family, vocab_size=48, hidden_size=32, num_hidden_layers=2, **own)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.mul_(3)
    model.save_pretrained(folder)
    return folder


def test_transformers_ignores_the_generation_config_of_the_model_and_gradient_checkpointing(
    folder: Callable[..., Path],
) -> None:
    request = request_for(HuggingFacePolicy(str(folder("qwen3"))))
    settings = GenerationConfig(repetition_penalty=5.0, temperature=0.1, top_k=2, do_sample=True, eos_token_id=[3, 4])
    request.module.model.generation_config = settings
    request.module.gradient_checkpointing_enable()
    request.module.train()
    check_engine(engine("transformers"), request)
    assert request.module.model.generation_config is settings
    assert request.module.training


def test_transformers_generates_with_a_copy_when_the_module_is_divided_among_ranks(
    folder: Callable[..., Path], tmp_path: Path
) -> None:
    from torch.distributed.fsdp import fully_shard

    request = request_for(HuggingFacePolicy(str(folder("qwen3"))))
    whole = {name: own.clone() for name, own in request.module.state_dict().items()}
    before = engine("transformers")(request)
    drawn = before.generate([[3, 4], [5]], SamplingConfig(), jax.random.key(0), max_new_tokens=4)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        fully_shard(request.module, mesh=mesh)
        before.update_weights(whole, 1)
        again = before.generate([[3, 4], [5]], SamplingConfig(), jax.random.key(0), max_new_tokens=4)
    finally:
        torch.distributed.destroy_process_group()
    np.testing.assert_array_equal(again.logprobs, drawn.logprobs)


def test_auto_takes_transformers_for_a_family_that_jax_does_not_know(folder: Callable[..., Path]) -> None:
    request = request_for(HuggingFacePolicy(str(folder("gpt2"))))
    check_engine(engine("auto"), request)
    with pytest.raises(EngineError, match=r"jax engine .*'gpt2' is none of llama.*engine = \"transformers\""):
        engine("jax")(request)


@pytest.mark.parametrize("name", ["jax", "transformers", "mlx"])
def test_an_engine_in_bf16_stays_near_the_forward_in_fp32(name: str, folder: Callable[..., Path]) -> None:
    if name == "mlx":
        pytest.importorskip("mlx_lm", reason='pip install "hookline[mlx-lm]"')
    check_engine(engine(name), request_for(HuggingFacePolicy(str(folder("qwen3"))), precision="bf16"), atol=0.3)


# -- what check_engine finds -------------------------------------------------------------------------------------------


class Faulty:
    """The jax engine with one fault."""

    def __init__(self, fault: str, request: EngineRequest) -> None:
        self.inner = engine("jax")(request)
        self.fault = fault
        self.module = request.module
        self.context, self.vocabulary = self.inner.context, self.inner.vocabulary

    @property
    def version(self) -> int | None:
        return self.inner.version

    def update_weights(self, weights: dict[str, Any], version: int | None) -> None:
        if self.fault == "keeps its first weights":
            weights = {}
        if self.fault == "writes into the module" and weights:
            own = self.module.state_dict()
            for name, value in weights.items():
                own[name].copy_(value)
        self.inner.update_weights(weights, None if self.fault == "forgets versions" else version)

    def generate(self, prompts: Any, sampling: SamplingConfig, key: Any, **more: Any) -> Generated:
        if self.fault == "pads with visible tokens":
            longest = max(map(len, prompts))
            prompts = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        if self.fault == "ignores the temperature":
            sampling = replace(sampling, temperature=1.0 if sampling.temperature else 0.0)
        if self.fault == "ignores top-p":
            sampling = replace(sampling, top_p=None)
        if self.fault == "keeps all tokens for a top-k" and sampling.top_k and not sampling.top_p:
            sampling = replace(sampling, top_k=self.vocabulary)
        if self.fault == "keeps all tokens for a top-p" and sampling.top_p and not sampling.top_k:
            sampling = replace(sampling, top_p=1.0)
        if self.fault == "ignores stop tokens":
            more["stop"] = ()
        if self.fault == "ignores the key":
            key = jax.random.key(0)
        if self.fault == "draws from torch's rng":
            torch.rand(1)
        if self.fault == "changes the mode":
            self.module.eval()
        made = self.inner.generate(prompts, sampling, key, **more)
        if self.fault == "gives logprobs before truncation" and made.log_mass is not None:
            made = made._replace(logprobs=made.logprobs + made.log_mass)
        return made


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("pads with visible tokens", "often one of left padding"),
        ("ignores the temperature", "torch's forward has"),
        ("ignores top-p", "log_mass is missing"),
        ("keeps all tokens for a top-k", "top_k=4, top_p=None.*of the tokens that are kept"),
        ("keeps all tokens for a top-p", "top_k=None, top_p=0.6.*of the tokens that are kept"),
        ("gives logprobs before truncation", "torch's forward has"),
        ("ignores stop tokens", "the stop token among them, not"),
        ("ignores the key", "another key gave the same tokens"),
        ("keeps its first weights", "after an update with other weights"),
        ("forgets versions", "the version is None after an update to 1"),
        ("writes into the module", "other weights were written into the module"),
        ("draws from torch's rng", "torch's global rng was used"),
        ("changes the mode", "the module's mode has changed"),
    ],
)
def test_a_fault_of_an_engine_is_found(fault: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_engine(lambda request: Faulty(fault, request), request_for(SMALL))


# -- by name -----------------------------------------------------------------------------------------------------------


def test_an_unknown_engine_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(
        EngineError, match=r"no engine 'transformer' \(did you mean 'transformers'\?\); known are auto, jax, mlx, tra"
    ):
        engine("transformer")(EngineRequest(SMALL))


@pytest.mark.parametrize("name", ["transformers", "mlx"])
def test_an_engine_that_does_not_support_a_policy_names_one_that_does(name: str) -> None:
    with pytest.raises(EngineError, match=rf"the {name} engine .*a TransformerPolicy, .*: use engine = \"jax\""):
        engine(name)(EngineRequest(SMALL))


@dataclass(frozen=True)
class Documented(TransformerPolicy):
    """Has a path that is no model's."""

    path: str = "notes.md"


def test_a_specification_with_a_path_of_its_own_is_not_taken_for_a_hugging_face_model() -> None:
    request = EngineRequest(Documented(vocabulary=48, width=32, layers=1, heads=4, context=48))
    with pytest.raises(EngineError, match='the policy, a Documented, has none: use engine = "jax"'):
        engine("mlx")(request)
    assert request.own_module() is None


def test_a_policy_that_no_engine_supports_is_an_error_that_says_what_it_lacks() -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(PolicyError, match=r"the policy, a Linear, cannot generate text: it has no jax_prefill\(\) and"):
        engine("auto")(EngineRequest(None, module))
    with pytest.raises(EngineError, match="the policy, a Linear, is none, and no engine of ours supports it"):
        engine("transformers")(EngineRequest(None, module))


def test_a_plugin_adds_an_engine_that_passes_and_that_a_worker_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("custom_engine", EXAMPLES / "custom_engine.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    plugins = PluginManager()
    plugins.register(example.PlainEngines(), "plain-engine")
    # The page's plugin and its test, with the example's engine.
    monkeypatch.setitem(sys.modules, "my_package", ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, "my_package.engine", SimpleNamespace(MyEngine=example.PlainEngine))
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(block, names)
    plugins.register(names["Plugin"](), "page")
    assert type(build_engine("mine", request_for(SMALL), plugins)) is example.PlainEngine
    names["test_it_is_a_good_engine"](SMALL)
    worker = RolloutWorker(RolloutWorkerConfig(CurriculumConfig([COUNT]), engine="plain"), plugins)
    assert type(worker.engine) is example.PlainEngine
    with pytest.raises(EngineError, match="such as TransformerPolicy, and the policy is a MLPPolicy"):
        build_engine("plain", EngineRequest(MLPPolicy(4, Discrete(2))), plugins)


def test_an_engine_that_is_no_function_is_an_error_that_names_the_plugin() -> None:
    class Careless:
        @hookimpl
        def register_engines(self) -> dict[str, str]:
            return {"mine": "vllm"}

    plugins = PluginManager()
    plugins.register(Careless(), "careless")
    with pytest.raises(
        EngineError, match="plugin 'careless': the engine 'mine' must be a function of an EngineRequest"
    ):
        build_engine("mine", EngineRequest(SMALL), plugins)


# -- in a worker -------------------------------------------------------------------------------------------------------


class Counting:
    """A plugin whose engine counts what a worker asks of it."""

    def __init__(self) -> None:
        self.built = 0
        self.updates: list[int | None] = []

    @hookimpl
    def register_engines(self) -> dict[str, EngineFactory]:
        return {"counting": self.build}

    def build(self, request: EngineRequest) -> Any:
        self.built += 1
        inner = engine("jax")(request)
        update = inner.update_weights

        def counted(weights: Any, version: int | None) -> None:
            self.updates.append(version)
            update(weights, version)

        inner.update_weights = counted
        return inner


def test_all_lessons_share_one_engine_which_gets_weights_once_per_update() -> None:
    counting = Counting()
    plugins = PluginManager()
    plugins.register(counting, "counting")
    lessons = [COUNT, Lesson("again", COUNT.environment)]
    config = RolloutWorkerConfig(CurriculumConfig(lessons, eval_frequency=None, micro_eval_frequency=None), SPEAKER)
    config.engine = "counting"
    worker = RolloutWorker(config, plugins)
    assert counting.built == 0, "a worker whose module the trainer brings does not load its own"
    worker.update_weights(SPEAKER.initial_weights(1), version=3)
    rollouts = [worker.rollout() for _ in range(4)]
    assert {rollout.lesson_id for rollout in rollouts} == {"count", "again"}
    assert (counting.built, counting.updates) == (1, [0, 3])
    assert {episode.weights_version for rollout in rollouts for episode in rollout.episodes} == {3}


def test_an_evaluation_with_other_weights_leaves_the_engine_with_those_of_training() -> None:
    worker = RolloutWorker(RolloutWorkerConfig(CurriculumConfig([COUNT]), SPEAKER, num_environments=4))
    request = EvaluationRequest(n_examples=4, greedy=False, replays=4)
    for weights in (None, SPEAKER.initial_weights(5)):  # the initial ones first
        if weights is not None:
            worker.update_weights(weights, version=2)
        before, version = worker.play(request, jax.random.key(0)), worker.engine.version
        others = worker.answer_evaluation(request, SPEAKER.initial_weights(9))
        assert {episode.weights_version for episode in others.episodes["count"]} == {None}
        assert worker.engine.version == version == worker.weights_version
        after = worker.play(request, jax.random.key(0))
        for one, other in zip(before["count"], after["count"], strict=True):
            np.testing.assert_array_equal(one.logprobs, other.logprobs)
        assert others.episodes["count"][0].logprobs[-1] != before["count"][0].logprobs[-1]


def test_weights_that_do_not_fit_are_an_error_that_lists_them() -> None:
    worker = RolloutWorker(RolloutWorkerConfig(CurriculumConfig([COUNT]), SPEAKER))
    weights = SPEAKER.initial_weights()
    weights["norm.wieght"] = weights.pop("norm.weight")
    with pytest.raises(WeightsError, match=r"norm.weight is missing \(did you mean 'norm.wieght'\?\)"):
        worker.update_weights(weights, version=1)


def test_a_worker_uses_the_tokenizer_of_its_policy(folder: Callable[..., Path]) -> None:
    path = tiny_model(folder("qwen3").parent / "spoken", "qwen3", vocab_size=320)  # more than the tokenizer has
    policy = HuggingFacePolicy(str(path))
    lesson = Lesson("sums", TextTask([("12+34=", "46")], max_new_tokens=3))
    config = RolloutWorkerConfig(CurriculumConfig([lesson]), policy, engine="transformers", num_environments=2)
    worker = RolloutWorker(config)
    episode = worker.rollout().episodes[0]
    assert worker.player.tokenizer.end == policy.tokenizer().end
    assert episode.tokens[: -len(episode.logprobs[episode.mask])].tolist() == policy.tokenizer().encode("12+34=")


def test_top_k_is_checked_against_the_vocabulary() -> None:
    config = RolloutWorkerConfig(CurriculumConfig([COUNT]), SMALL, sampling=SamplingConfig(top_k=49))
    with pytest.raises(RolloutError, match="sampling.top_k must be 1 to 48 or None, got 49"):
        RolloutWorker(config)
