"""`CausalLM`: a causal language model of `transformers`, with or without adapters of peft, as a module to train."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from hookline.errors import did_you_mean
from hookline.importing import require
from hookline.policies.forward_torch import chosen_logprobs, head_logprobs
from hookline.policies.huggingface import HuggingFacePolicy, LoraConfig
from hookline.policies.protocol import PolicyError

__all__ = ["CausalLM", "add_adapters", "align_weights", "is_transformers_model", "merge_adapters", "on_meta_device"]


NO_OPTIONS: Final = frozenset([
    "r", "lora_alpha", "lora_dropout", "target_modules",
    "fan_in_fan_out", "task_type", "peft_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision",
    "inference_mode",
])  # fmt: skip
"""The fields of `peft.LoraConfig` that are no options: a `LoraConfig` has them, or they follow from the model."""

PLAIN_STARTS: Final = (True, False, "gaussian", "orthogonal")
"""The values of `init_lora_weights` that leave the base as it is."""


SCORES_AT_ONCE: Final = 2**25
"""The most attention scores of a layer, over all heads, that plain attention keeps: 128 MB."""

AUTOCAST_FACTOR: Final = 4
"""Plain attention may keep so many times as many under autocast, where the fused one takes several times as long."""

ALIGNMENT: Final = 64
"""The bytes to which memory that JAX reads in place is aligned."""


class CausalLM(nn.Module):
    """A text policy from a `PreTrainedModel` or a `PeftModel`, which stays available as `model`.

    The state dict has the names that `transformers` saves, and weights that are tied are in it once. Of a `PeftModel`
    it has the adapters alone.

    The model's own dropout is turned off, because engines sample without it: with dropout, the log-probability of a
    sampled token would not be that of the distribution it was sampled from. Dropout of the adapters stays.

    :param specification: what the model was loaded from; by default found in the model.
    """

    def __init__(self, model: Any, specification: HuggingFacePolicy | None = None) -> None:
        super().__init__()
        if not model.can_generate():
            raise PolicyError(f"the policy, a {type(model).__name__}, is not a causal language model")
        if _is_peft(model) and model.active_peft_config.is_prompt_learning:
            raise PolicyError(
                f"the policy's adapter learns a prompt ({model.active_peft_config.peft_type.value}), and adapters are "
                "supported in a model's layers alone: use another kind, such as LoRA"
            )
        self.model = model
        self.specification = specification or _specification(model)
        self._names = _public_names(model)
        trained = {name for name, own in self.named_parameters() if own.requires_grad}
        self._saved = {raw: name for raw, name in self._names.items() if raw in trained or not _is_peft(model)}
        parameters = inspect.signature(self._transformers_model().forward).parameters
        self._skips_logits = "logits_to_keep" in parameters
        self.has_plain_cache = _has_plain_cache(self._transformers_model(), parameters)
        """Whether the cache keeps the keys and values of all tokens."""
        self._head = (_plain_head(self._transformers_model()),)  # in a tuple, since it is the model's submodule
        _turn_off_dropout(model)
        self.train()
        hooks: Any = self  # torch has no types for these
        hooks.register_state_dict_post_hook(_to_public_names)
        hooks.register_load_state_dict_pre_hook(_from_public_names)
        hooks.register_load_state_dict_post_hook(_leave_out_what_is_not_saved)

    def token_logprobs(
        self, tokens: Tensor, valid: Tensor, temperature: Tensor | None = None, needed: Tensor | None = None
    ) -> Tensor:
        """The log-probability of each token but the first, given those before it: (rows, length - 1).

        Zero for padding, for tokens that are not needed, and for the first token after padding. Logits are computed
        for the other tokens only. Rows that begin with the same tokens, as the responses to one prompt do, share their
        computation up to the first needed token.
        """
        wanted = valid[:, 1:] & valid[:, :-1]
        if needed is not None:
            wanted &= needed
        inputs, keep = _aligned_left(tokens, valid, wanted)
        # Rows keep the order of their tokens, so the kept places are those of the chosen tokens.
        chosen = tokens[:, 1:][wanted]
        temperature = None if temperature is None else temperature[:, None].expand(wanted.shape)[wanted]
        prompts = _shared_prompts(inputs, keep) if self._shares_prompts() else None
        with self._attention_for(inputs):
            if prompts is None:
                # No attention mask: a causal model does not see the padding, which is on the right of every row.
                states, _ = self._read(keep, input_ids=inputs, use_cache=False)
            else:
                states, places = self._read_after(prompts, inputs, keep)
                chosen, temperature = chosen[places], None if temperature is None else temperature[places]
        found = self._logprobs(states, chosen, temperature)
        if prompts is not None:
            found = torch.empty_like(found).index_copy(0, places, found)
        return found.new_zeros(wanted.shape).masked_scatter(wanted, found)

    def _read(self, keep: Tensor | int, **inputs: Any) -> tuple[Tensor, Any]:
        """What `_logprobs` needs at the kept places, or at so many last places of each row; and the cache."""
        (head,) = self._head
        if head is not None:
            read = self._transformers_model().base_model(**inputs)
            hidden = read.last_hidden_state
            kept = hidden[:, -keep:].flatten(0, 1) if isinstance(keep, int) else hidden[keep]
            return kept, getattr(read, "past_key_values", None)
        if self._skips_logits:
            read = self.model(**inputs, logits_to_keep=keep)
            return read.logits.flatten(0, -2), read.past_key_values
        return self.model(**inputs).logits[keep], None

    def _logprobs(self, states: Tensor, chosen: Tensor, temperature: Tensor | None) -> Tensor:
        (head,) = self._head
        if head is None:
            return chosen_logprobs(states, chosen, temperature)
        return head_logprobs(states, head, chosen, temperature)

    def _read_after(self, prompts: SharedPrompts, inputs: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """As `_read`. Each prompt is read once, and its rows continue from a key-value cache of it.

        The kept places come in another order, which is returned too: first those at the ends of the prompts.
        """
        of_row, visible = prompts.of_row, prompts.tokens >= 0
        states, cache = self._read(
            1,
            input_ids=prompts.tokens.clamp(min=0),
            attention_mask=visible.long(),
            position_ids=(visible.cumsum(1) - 1).clamp(min=0),
            use_cache=True,
        )
        has_kept = keep.any(1)  # such a row has its first kept place at the end of its prompt
        is_first = (keep.int().cumsum(1) == 1)[keep]
        states = states.index_select(0, of_row[has_kept])
        places = torch.cat([is_first.nonzero()[:, 0], (~is_first).nonzero()[:, 0]])
        if not prompts.longest_rest:
            return states, places
        length, ends = inputs.shape[1], visible.sum(1)[of_row]
        after = ends[:, None] + torch.arange(prompts.longest_rest, device=inputs.device)
        within = after.clamp(max=length - 1)
        kept = keep.gather(1, within) & (after < length) & has_kept[:, None]
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.index_select(0, of_row), layer.values.index_select(0, of_row)
        rest, _ = self._read(
            kept,
            input_ids=inputs.gather(1, within),
            attention_mask=nn.functional.pad(visible[of_row].long(), (0, after.shape[1]), value=1),
            position_ids=within,
            past_key_values=cache,
            use_cache=True,
        )
        return torch.cat([states, rest]), places

    @contextmanager
    def _attention_for(self, inputs: Tensor) -> Iterator[None]:
        """On a CPU, plain attention is faster than torch's fused one, and in bfloat16 several times as fast.

        It keeps a score for each pair of tokens and each head, so many pairs are left to the fused one. So is
        checkpointing, because the backward pass computes the layers again, with what the config says then.
        """
        config = self._transformers_model().config
        before = config._attn_implementation
        if before == "sdpa" and inputs.device.type == "cpu" and not self._is_checkpointing:
            scores = inputs.numel() * inputs.shape[1] * getattr(config.get_text_config(), "num_attention_heads", 1)
            if scores <= SCORES_AT_ONCE * (AUTOCAST_FACTOR if torch.is_autocast_enabled("cpu") else 1):
                config._attn_implementation = "eager"
        try:
            yield
        finally:
            config._attn_implementation = before

    def _shares_prompts(self) -> bool:
        """Whether rows can continue from the cache of another row. Not with checkpointing, which allows no cache."""
        return self._skips_logits and self.has_plain_cache and not self._is_checkpointing

    @property
    def _is_checkpointing(self) -> bool:
        return self.training and getattr(self._transformers_model(), "is_gradient_checkpointing", False)

    def gradient_checkpointing_enable(self) -> None:
        """Recompute each layer's activations in the backward pass instead of keeping them."""
        self._transformers_model().gradient_checkpointing_enable({"use_reentrant": False})

    def full_state_dict(self) -> dict[str, Tensor]:
        """All weights by name, those of the base and those of the adapters. They are not copied."""
        weights = self.model.state_dict()
        return {name: weights[raw.removeprefix("model.")] for raw, name in self._names.items()}

    def _transformers_model(self) -> Any:
        return self.model.get_base_model() if _is_peft(self.model) else self.model


def add_adapters(model: Any, lora: LoraConfig, seed: int) -> Any:
    """A `PeftModel` with new adapters from a seed. The model's own weights are frozen."""
    peft = require("peft", "`lora`")
    conv1d = require("transformers", "`lora`").pytorch_utils.Conv1D
    known = [own.name for own in dataclasses.fields(peft.LoraConfig) if own.name not in NO_OPTIONS]
    for name in lora.options:
        if name not in known:
            raise PolicyError(f"lora.options: peft.LoraConfig has no field {name!r}{did_you_mean(name, known)}")
    start = lora.options.get("init_lora_weights", True)
    if start not in PLAIN_STARTS:
        raise PolicyError(
            f"lora.options.init_lora_weights = {start!r} changes the base, which checkpoints do not have: "
            f"it must be one of {', '.join(map(repr, PLAIN_STARTS))}"
        )
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            config = peft.LoraConfig(
                r=lora.r,
                lora_alpha=lora.alpha,
                lora_dropout=lora.dropout,
                target_modules=targets,
                fan_in_fan_out=any(isinstance(module, conv1d) for module in model.modules()),  # GPT-2's layers
                task_type="CAUSAL_LM",
                **lora.options,
            )
            return peft.get_peft_model(model, config)
        except (TypeError, ValueError) as error:
            options = f" with the options {dict(lora.options)}" if lora.options else ""
            raise PolicyError(f"lora.target_modules = {lora.target_modules!r}{options}: {error}") from error


@torch.no_grad()
def merge_adapters(model: Any) -> Any:
    """The base model of a `PeftModel`, with the adapters added to its weights. Layers that would differ are untied."""
    tokens = torch.arange(min(8, model.config.get_text_config().vocab_size))[None]
    before = model.eval()(tokens).logits
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    for layer in model.modules():
        base: Any = layer.get_base_layer() if hasattr(layer, "get_base_layer") else None
        if uses[id(getattr(base, "weight", None))] > 1:  # experts have weights of other names
            base.weight = nn.Parameter(base.weight.detach().clone())
            model.get_base_model().config.tie_word_embeddings = False
    merged = model.merge_and_unload()
    if (merged(tokens).logits - before).abs().max() > 1e-3 * before.abs().max():
        raise PolicyError("peft cannot merge these adapters: the merged model is another policy. Export them unmerged")
    return merged


def align_weights(model: nn.Module) -> None:
    """Copy the weights that JAX could not read in place, such as those of a file that is mapped into memory."""
    for own in model.parameters():
        if own.data_ptr() % ALIGNMENT:
            own.data = own.data.clone()


def on_meta_device(config: Any) -> Any:
    """A model of this config without memory for its weights."""
    transformers = require("transformers", "a Hugging Face policy")
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def is_transformers_model(module: object) -> bool:
    """Whether a module is a `PreTrainedModel` or a `PeftModel`."""
    transformers = sys.modules.get("transformers")  # without it there is no such module
    return _is_peft(module) or (transformers is not None and isinstance(module, transformers.PreTrainedModel))


def _is_peft(module: object) -> bool:
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def _specification(model: Any) -> HuggingFacePolicy | None:
    """The specification of a model that was loaded from somewhere, else None."""
    lora = None
    if _is_peft(model):
        config = model.active_peft_config
        if config.peft_type != "LORA":
            return None
        targets = config.target_modules
        targets = targets if isinstance(targets, str) else tuple(sorted(targets))
        lora = LoraConfig(config.r, float(config.lora_alpha), config.lora_dropout, targets, _options(config))
        model = model.get_base_model()
    return HuggingFacePolicy(model.name_or_path, lora) if model.name_or_path else None


def _options(config: Any) -> dict[str, Any]:
    """The fields of a `peft.LoraConfig` that are not the defaults, and have none of our own."""
    given, usual = config.to_dict(), type(config)().to_dict()
    return {
        name: sorted(value) if isinstance(value, set) else value
        for name, value in given.items()
        if name not in NO_OPTIONS and value != usual[name]
    }


def _public_names(model: Any) -> dict[str, str]:
    """The public name of each weight by its name in a `CausalLM`. Of tied weights only the first is in it."""
    adapter = f".{model.active_adapter}" if _is_peft(model) else None
    names, seen = {}, set()
    for raw, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        name = raw
        if adapter is not None:
            name = raw.removeprefix("base_model.model.")
            if f"{adapter}." in f"{name}.":
                # Several parameters of a module, such as those of experts, have adapters one within another, whose
                # names differ by `base_layer`. Those of an embedding are no modules.
                name = name.replace(f"{adapter}.", ".").removesuffix(adapter)
            else:
                name = name.replace(".base_layer", "")
        names[f"model.{raw}"] = name
    return names


def _to_public_names(module: CausalLM, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    del metadata
    saved = {prefix + name: state_dict[prefix + raw] for raw, name in module._saved.items()}
    for name in [name for name in state_dict if name.startswith(prefix)]:
        del state_dict[name]
    state_dict.update(saved)


def _from_public_names(module: CausalLM, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
    del others
    found = {raw: state_dict.pop(prefix + name) for raw, name in module._saved.items() if prefix + name in state_dict}
    state_dict.update({prefix + raw: value for raw, value in found.items()})


def _leave_out_what_is_not_saved(module: CausalLM, incompatible: Any) -> None:
    missing = incompatible.missing_keys
    missing[:] = [module._saved[raw] for raw in missing if raw in module._saved]


def _turn_off_dropout(model: nn.Module) -> None:
    """Set all dropout rates to zero, but not those of adapters."""
    for name, module in model.named_modules():
        if "lora_dropout" in name:
            continue
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        rates = [attribute for attribute, value in vars(module).items() if "drop" in attribute and type(value) is float]
        for attribute in rates:
            setattr(module, attribute, 0.0)


class SharedPrompts(NamedTuple):
    """The different prompts of a batch."""

    tokens: Tensor
    """(prompts, length), with -1 on the left of the shorter ones."""
    of_row: Tensor
    """The prompt of each row."""
    longest_rest: int
    """The most tokens from the end of a row's prompt to its last kept place."""


def _shared_prompts(inputs: Tensor, keep: Tensor) -> SharedPrompts | None:
    """The rows' prompts, up to the first kept place. None if sharing them saves less than a fifth of the tokens."""
    rows, length = inputs.shape
    if rows < 2:
        return None
    ends = keep.int().argmax(1) + 1
    lasts = length - keep.flip(1).int().argmax(1)
    rests = (lasts - ends).where(keep.any(1), 0)
    longest = int(ends.max())
    places = torch.arange(longest, device=inputs.device) + (ends - longest)[:, None]
    prompts = inputs.gather(1, places.clamp(min=0)).masked_fill(places < 0, -1)
    tokens, of_row = torch.unique(prompts, dim=0, return_inverse=True)
    longest_rest = int(rests.max())
    saves = tokens.numel() + rows * longest_rest <= 0.8 * inputs.numel()
    return SharedPrompts(tokens, of_row, longest_rest) if saves else None


def _plain_head(model: Any) -> nn.Linear | None:
    """The output layer, if it alone makes the logits of what the backbone returns. Some models scale or cap them."""
    head, backbone = model.get_output_embeddings(), model.base_model
    if type(head) is not nn.Linear or backbone is model or head.weight.is_meta:
        return None
    last = len(head.weight)
    tokens = torch.arange(max(0, last - 8), last, device=head.weight.device)[None]  # the first may be padding
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    with torch.no_grad():
        logits = head(backbone(tokens).last_hidden_state)
        is_plain = bool(logits.any()) and torch.equal(logits, model(tokens).logits)
    for module in in_training:
        module.training = True
    return head if is_plain else None


def _has_plain_cache(model: Any, parameters: Mapping[str, Any]) -> bool:
    """Whether the model continues from a cache that keeps the keys and values of all tokens."""
    if not {"position_ids", "past_key_values"} <= parameters.keys():
        return False
    caches = require("transformers", "a Hugging Face policy").cache_utils
    try:
        layers = caches.DynamicCache(config=model.config).layers
    except (AttributeError, KeyError, TypeError):  # of an architecture with a cache of its own
        return False
    return all(type(layer) is caches.DynamicLayer for layer in layers)


def _aligned_left(tokens: Tensor, valid: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs with each row's first token in the first column, and the places whose next token is wanted."""
    rows, length = tokens.shape
    starts = valid.int().argmax(1)
    keep = nn.functional.pad(wanted, (0, 1))
    if starts.any():
        index = (torch.arange(length, device=tokens.device) + starts[:, None]) % length
        tokens, keep = tokens.gather(1, index), keep.gather(1, index)
    longest = max(int(valid.sum(1).max()) - 1, 1) if rows else 1
    return tokens[:, :longest], keep[:, :longest]
