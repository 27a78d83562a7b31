"""Hugging Face policies: log-probabilities, names of weights, tokenizers, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationConfig

from hookline.policies import HuggingFacePolicy, LoraConfig, PolicyError, forward_torch, huggingface_torch
from hookline.policies.huggingface import HuggingFaceTokenizer
from hookline.policies.huggingface_torch import CausalLM
from hookline.policies.protocol import Tokenizer
from hookline.testing.tiny_models import CHAT_TEMPLATE, FAMILIES, tiny_model, tiny_tokenizer
from hookline_hookspecs import Turn


def rows(count: int = 5, length: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens with padding on the left, on the right, on both sides, and nowhere."""
    tokens = torch.randint(4, 300, (count, length), generator=torch.Generator().manual_seed(seed))
    valid = torch.ones(count, length, dtype=torch.bool)
    valid[1, :4] = False
    valid[2, 7:] = False
    valid[3, :2] = False
    valid[3, 9:] = False
    return tokens.where(valid, 0), valid


def oracle(folder: Path, tokens: torch.Tensor, valid: torch.Tensor, temperature: torch.Tensor | None) -> torch.Tensor:
    """Each row by itself, without padding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found = torch.zeros(tokens.shape[0], tokens.shape[1] - 1)
    for row, (own, is_there) in enumerate(zip(tokens, valid, strict=True)):
        logits = model(own[is_there][None]).logits[0]
        if temperature is not None:
            logits = logits / temperature[row]
        logprobs = logits.log_softmax(-1)[:-1].gather(1, own[is_there][1:, None])[:, 0]
        found[row, is_there.nonzero()[1:, 0] - 1] = logprobs
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tempered", [False, True])
@torch.no_grad()
def test_log_probabilities_equal_those_of_each_row_alone(family: str, tempered: bool, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, family)
    tokens, valid = rows()
    temperature = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.3]) if tempered else None
    expected = oracle(folder, tokens, valid, temperature)
    assert expected.std() > 1
    module = HuggingFacePolicy(str(folder)).torch_module()
    torch.testing.assert_close(module.token_logprobs(tokens, valid, temperature), expected, atol=2e-5, rtol=1e-5)
    needed = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    found = module.token_logprobs(tokens, valid, temperature, needed)
    torch.testing.assert_close(found, expected * needed, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("granite", {"logits_scaling": 3.0}),
        ("gemma2", {"final_logit_softcapping": 3.0, "num_key_value_heads": 2, "head_dim": 16}),
        ("cohere", {"logit_scale": 0.3, "num_key_value_heads": 2}),
    ],
)
@torch.no_grad()
def test_what_a_model_does_with_its_logits_is_done(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, family, **changes)
    tokens, valid = rows()
    found = HuggingFacePolicy(str(folder)).torch_module().token_logprobs(tokens, valid)
    torch.testing.assert_close(found, oracle(folder, tokens, valid, None), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_a_large_vocabulary_is_read_in_parts(
    lora: LoraConfig | None, tempered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = HuggingFacePolicy(str(tiny_model(tmp_path)), lora).torch_module()
    tokens, valid = rows()
    temperature = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.3]) if tempered else None

    def run() -> list[torch.Tensor]:
        module.zero_grad()
        found = module.token_logprobs(tokens, valid, temperature)
        (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
        return [found.detach(), *(own.grad.clone() for own in module.parameters() if own.grad is not None)]

    whole = run()
    monkeypatch.setattr(forward_torch, "LOGITS_AT_ONCE", 7 * 300)
    for own, other in zip(run(), whole, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_long_texts_have_fused_attention_and_the_model_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = HuggingFacePolicy(str(tiny_model(tmp_path))).torch_module()
    used: list[str] = []
    config = module.model.config
    module.model.base_model.register_forward_pre_hook(lambda *_: used.append(config._attn_implementation))
    tokens, valid = rows()
    short = module.token_logprobs(tokens, valid)
    scores = tokens.numel() * tokens.shape[1] * config.num_attention_heads  # more than those of the inputs
    monkeypatch.setattr(huggingface_torch, "SCORES_AT_ONCE", scores // 4)
    torch.testing.assert_close(module.token_logprobs(tokens, valid), short, atol=1e-5, rtol=1e-5)
    assert used == ["eager", "sdpa"]
    with torch.autocast("cpu", torch.bfloat16):
        module.token_logprobs(tokens, valid)
        monkeypatch.setattr(huggingface_torch, "SCORES_AT_ONCE", 100)
        module.token_logprobs(tokens, valid)
    assert used[2:] == ["eager", "sdpa"], "more scores are plain under autocast, and not any number"
    assert config._attn_implementation == "sdpa"


def test_checkpointing_has_fused_attention_in_both_passes(tmp_path: Path) -> None:
    module = HuggingFacePolicy(str(tiny_model(tmp_path))).torch_module()
    module.gradient_checkpointing_enable()
    config = module.model.config
    used: list[str] = []
    module.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: used.append(config._attn_implementation))
    tokens, valid = rows()
    with torch.autocast("cpu", torch.bfloat16):
        loss = module.token_logprobs(tokens, valid).sum()
    loss.backward()
    assert used == ["sdpa", "sdpa"]
    assert config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_state_dict_is_what_from_pretrained_reads(family: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, family)
    policy = HuggingFacePolicy(str(folder))
    module = policy.torch_module()
    saved = load_file(folder / "model.safetensors")
    state = module.state_dict()
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    assert policy.shapes() == {name: tuple(tensor.shape) for name, tensor in saved.items()}
    assert all(own.data_ptr() == state[name].data_ptr() for name, own in module.full_state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_with_lora_the_state_dict_has_the_adapters_alone_and_names_of_the_layers_they_belong_to(
    family: str, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path, family)
    policy = HuggingFacePolicy(str(folder), LoraConfig(r=3, alpha=6))
    module = policy.torch_module(seed=1)
    state, full = module.state_dict(), module.full_state_dict()
    layer = {"gpt2": "transformer.h.1.attn.c_attn"}.get(family, "model.layers.1.self_attn.q_proj")
    assert {f"{layer}.lora_A.weight", f"{layer}.lora_B.weight"} < state.keys()
    assert all(".lora_A.weight" in name or ".lora_B.weight" in name for name in state)
    assert full.keys() == state.keys() | load_file(folder / "model.safetensors").keys()
    assert policy.shapes() == {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert {name for name, own in module.named_parameters() if own.requires_grad} == set(module._saved)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did")  # of peft, for experts
def test_each_adapter_of_a_layer_of_experts_has_a_name_of_its_own(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "mixtral", num_key_value_heads=2, num_local_experts=4)
    module = HuggingFacePolicy(str(folder), LoraConfig(r=3)).torch_module()
    trained = [own for own in module.parameters() if own.requires_grad]
    assert len(module.state_dict()) == len(trained)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert module.full_state_dict().keys() == base.keys() | module.state_dict().keys()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_adapters_add_a_scaled_product_to_the_output_of_their_layer(family: str, tmp_path: Path) -> None:
    """The formula that engines use, checked by folding the adapters into the base."""
    folder = tiny_model(tmp_path / "base", family)
    policy = HuggingFacePolicy(str(folder), LoraConfig(r=3, alpha=6))
    module = policy.torch_module(seed=1)
    generator = torch.Generator().manual_seed(2)
    module.load_state_dict({n: torch.randn(w.shape, generator=generator) * 0.1 for n, w in module.state_dict().items()})
    full = module.full_state_dict()
    folded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = folded.state_dict()
    for name in [name for name in full if name.endswith(".lora_A.weight")]:
        layer = name.removesuffix(".lora_A.weight")
        product = policy.lora.scale * full[f"{layer}.lora_B.weight"] @ full[name]
        weights[f"{layer}.weight"] += product.T if family == "gpt2" else product
    tokens, valid = rows()
    plain = CausalLM(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)).token_logprobs(tokens, valid)
    found = module.token_logprobs(tokens, valid)
    torch.testing.assert_close(found, CausalLM(folded).token_logprobs(tokens, valid), atol=1e-4, rtol=1e-4)
    assert (found - plain).abs().max() > 0.1


def test_new_adapters_depend_on_the_seed_alone_and_do_not_move_the_generator(tmp_path: Path) -> None:
    policy = HuggingFacePolicy(str(tiny_model(tmp_path)), LoraConfig(r=2))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (policy.torch_module(seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_weights_of_a_state_dict_can_be_loaded_and_what_is_missing_is_named(
    lora: LoraConfig | None, tmp_path: Path
) -> None:
    policy = HuggingFacePolicy(str(tiny_model(tmp_path)), lora)
    changed = {name: own + 1 for name, own in policy.initial_weights().items()}
    module = policy.torch_module(changed)
    assert all(torch.equal(own, torch.from_numpy(changed[name])) for name, own in module.state_dict().items())
    state = module.state_dict()
    name, _ = state.popitem()
    with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
        module.load_state_dict(state)


def test_dropout_is_off_but_for_that_of_the_adapters(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "gpt2", resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3)
    tokens, valid = rows()
    plain = HuggingFacePolicy(str(folder)).torch_module()
    assert plain.training
    assert torch.equal(plain.token_logprobs(tokens, valid), plain.eval().token_logprobs(tokens, valid))
    other = tiny_model(tmp_path / "llama", "llama", attention_dropout=0.3)
    attentive = HuggingFacePolicy(str(other)).torch_module()
    assert torch.equal(attentive.token_logprobs(tokens, valid), attentive.token_logprobs(tokens, valid))
    adapted = HuggingFacePolicy(str(other), LoraConfig(r=2, dropout=0.5)).torch_module()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.1)
    assert not torch.equal(adapted.token_logprobs(tokens, valid), adapted.token_logprobs(tokens, valid))


# -- the tokenizer ----------------------------------------------------------------------------------------------------


def test_a_prompt_without_a_chat_template_is_its_own_tokens(tmp_path: Path) -> None:
    tokenizer = HuggingFacePolicy(str(tiny_model(tmp_path))).tokenizer()
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.encode_messages([Turn("user", "12+34=")]) == tokenizer.encode("12+34=")
    assert tokenizer.size == 300
    assert tokenizer.decode(tokenizer.encode("12+34= é")) == "12+34= é"


def test_a_prompt_is_the_first_message_of_a_chat_where_there_is_a_template(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path, chat_template=CHAT_TEMPLATE)
    tokenizer = HuggingFacePolicy(str(tiny_model(tmp_path))).tokenizer()
    tokens = tokenizer.encode_messages([Turn("user", "1+1=")])
    assert tokenizer.tokenizer.decode(tokens) == "<|user|>1+1=<|end|><|assistant|>"


def test_a_response_ends_at_any_end_token_and_special_tokens_are_left_out(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    end_of_turn = 2
    GenerationConfig(eos_token_id=[end_of_turn, 1]).save_pretrained(folder)
    tokenizer = HuggingFacePolicy(str(folder)).tokenizer()
    assert tokenizer.end == (1, end_of_turn)
    text = tokenizer.encode("46")
    assert tokenizer.decode([0, 3, *text, end_of_turn, *text]) == "46"
    assert tokenizer.decode([*text, 1, *text]) == "46"


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    tokenizer = HuggingFacePolicy(str(tiny_model(tmp_path))).tokenizer()
    with pytest.raises(PolicyError, match="the prompt '' has no tokens"):
        tokenizer.encode_messages([Turn("user", "")])


# -- errors -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_loaded_is_an_error_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: True)
    with pytest.raises(PolicyError, match=r"policy '/no/such/folder': there is no such folder$"):
        HuggingFacePolicy("/no/such/folder").torch_module()
    with pytest.raises(
        PolicyError,
        match=r"policy 'no/such-model': there is no such folder, and it cannot be loaded from the Hugging Face hub: .* "
        "Without a connection, give the path of the model's folder",
    ):
        HuggingFacePolicy("no/such-model").torch_module()
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolicyError, match=r"policy '.*empty': the folder has no config.json"):
        HuggingFacePolicy(str(tmp_path / "empty")).torch_module()


def test_a_folder_without_a_tokenizer_is_an_error_when_one_is_needed(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    policy = HuggingFacePolicy(str(folder))
    policy.torch_module()
    with pytest.raises(PolicyError, match=r"the folder has no tokenizer: save the model's tokenizer there"):
        policy.tokenizer()


def test_a_tokenizer_of_a_vocabulary_and_merges_is_read(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "gpt2")
    for file in folder.glob("tokenizer_config*"):
        file.unlink()
    whole = folder / "tokenizer.json"
    expected = json.loads(whole.read_text())["model"]
    whole.unlink()
    (folder / "vocab.json").write_text(json.dumps(expected["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in expected["merges"])]))
    tokenizer = HuggingFacePolicy(str(folder)).tokenizer()
    tokens = tokenizer.encode("12+34=46")
    assert 0 < len(tokens) < 8, "merges are applied"
    assert tokenizer.decode(tokens) == "12+34=46"


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.eos_token = None
    with pytest.raises(PolicyError, match="has no end token, so no response would end"):
        HuggingFaceTokenizer(tokenizer)


def test_adapters_for_layers_that_do_not_exist_are_an_error(tmp_path: Path) -> None:
    policy = HuggingFacePolicy(str(tiny_model(tmp_path)), LoraConfig(target_modules=("q_projection",)))
    with pytest.raises(PolicyError, match=r"lora.target_modules = \('q_projection',\): .*not found"):
        policy.torch_module()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_rslor": True}, "lora.options: peft.LoraConfig has no field 'use_rslor' .did you mean 'use_rslora'"),
        ({"lora_alpha": 3}, "lora.options: peft.LoraConfig has no field 'lora_alpha'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' changes the base"),
        ({"layers_to_transform": [7]}, "with the options {'layers_to_transform': .7.}: .*not found"),
    ],
)
def test_options_of_adapters_that_cannot_be_are_an_error(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    policy = HuggingFacePolicy(str(tiny_model(tmp_path)), LoraConfig(target_modules=("q_proj",), options=options))
    with pytest.raises(PolicyError, match=message):
        policy.torch_module()


def test_what_a_config_leaves_out_is_as_in_transformers(tmp_path: Path) -> None:
    kept = {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 32, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    policy = HuggingFacePolicy(str(tmp_path)).jax_policy()
    full = AutoConfig.for_model(**kept)
    assert policy.vocabulary == full.vocab_size
    assert policy.context == full.max_position_embeddings
    assert policy.kv_heads == full.num_key_value_heads


def test_a_config_that_transformers_rejects_is_an_error_with_the_reason(tmp_path: Path) -> None:
    config = {"model_type": "llama", "rope_scaling": {"rope_type": "linear"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="cannot be loaded: .*factor"):
        HuggingFacePolicy(str(tmp_path)).config()


def test_a_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(tiny_model(tmp_path))
    with pytest.raises(PolicyError, match="the policy, a Qwen3Model, is not a causal language model"):
        CausalLM(model)


def test_an_adapter_that_learns_a_prompt_is_refused(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model(tmp_path))
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(PolicyError, match=r"the policy's adapter learns a prompt \(PROMPT_TUNING\).* such as LoRA"):
        CausalLM(peft.get_peft_model(model, config))


def grouped_rows(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, valid and needed: groups of responses to prompts of different lengths, some padded on the left."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    rows = []
    for _ in range(3):
        prompt = torch.randint(4, 300, (number(5, 14),), generator=generator)
        rows += [(prompt, torch.randint(4, 300, (number(1, 6),), generator=generator)) for _ in range(4 + number(0, 3))]
    length = max(len(prompt) + len(response) for prompt, response in rows) + 2
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    valid, needed = torch.zeros(tokens.shape, dtype=torch.bool), torch.zeros(tokens.shape, dtype=torch.bool)
    for index, (prompt, response) in enumerate(rows):
        start = number(0, 3)
        end = start + len(prompt) + len(response)
        tokens[index, start:end] = torch.cat([prompt, response])
        valid[index, start:end] = True
        needed[index, start + len(prompt) : end] = True
    needed[0] = False  # a row that is not trained at all
    return tokens, valid, needed[:, 1:]


@pytest.mark.parametrize(("family", "seed"), [(family, seed) for seed, family in enumerate(FAMILIES)])
def test_rows_that_share_a_prompt_have_the_gradient_of_rows_that_do_not(
    family: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = HuggingFacePolicy(str(tiny_model(tmp_path, family))).torch_module()
    tokens, valid, needed = grouped_rows(seed)
    calls: list[int] = []
    module.model.base_model.register_forward_pre_hook(
        lambda _, __, kwargs: calls.append(kwargs["input_ids"].numel()), with_kwargs=True
    )

    def gradient() -> tuple[torch.Tensor, list[torch.Tensor]]:
        module.zero_grad()
        found = module.token_logprobs(tokens, valid, torch.full((len(tokens),), 0.8), needed)
        (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
        return found.detach(), [own.grad.clone() for own in module.parameters() if own.grad is not None]

    found, gradients = gradient()
    assert len(calls) == 2, "the prompts, and what follows them"
    assert sum(calls) < 0.8 * tokens.numel()
    monkeypatch.setattr(module, "has_plain_cache", False)
    expected, expected_gradients = gradient()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    for own, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(own, other, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_token_responses_share_their_prompt_and_checkpointing_shares_nothing(
    checkpointing: bool, tmp_path: Path
) -> None:
    module = HuggingFacePolicy(str(tiny_model(tmp_path))).torch_module()
    if checkpointing:
        module.gradient_checkpointing_enable()
    prompt = torch.randint(4, 300, (1, 9), generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([prompt.repeat(6, 1), torch.arange(10, 16)[:, None]], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    needed = torch.zeros(6, 9, dtype=torch.bool)
    needed[:, -1] = True
    rows: list[int] = []
    module.model.base_model.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    found = module.token_logprobs(tokens, valid, None, needed)
    assert rows == [6 if checkpointing else 1]
    with torch.no_grad():
        expected = module.model(input_ids=prompt).logits[0, -1].log_softmax(-1)[tokens[:, -1]]
    torch.testing.assert_close(found[:, -1], expected, atol=2e-5, rtol=1e-5)
