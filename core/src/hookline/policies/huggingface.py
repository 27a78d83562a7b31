"""`HuggingFacePolicy`: a causal language model of `transformers`, from a folder or from the Hugging Face hub.

`HuggingFaceTokenizer` is its tokenizer in rollouts, with or without a chat template.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.importing import require
from hookline.policies.protocol import PolicyError

if TYPE_CHECKING:
    import numpy as np

    from hookline.policies.huggingface_torch import CausalLM
    from hookline_hookspecs import Turn

__all__ = ["HuggingFacePolicy", "HuggingFaceTokenizer", "LoraConfig"]


HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""What may be the name of a model on the hub. Everything else is a path."""

TOKENIZER_FILES: Final = ("tokenizer*", "vocab*", "*.model")
"""One of these is in a folder with a tokenizer."""

RESPONSE: Final = "[[response 5d1c]]"
"""Stands for each response where a template writes a conversation. The policy's own tokens are never written again."""


class HuggingFaceTokenizer:
    """A `Tokenizer` from a tokenizer of `transformers`.

    :param tokenizer: such as `AutoTokenizer.from_pretrained` returns.
    :param more_ends: end tokens besides the tokenizer's own, such as those of a generation config.
    """

    def __init__(self, tokenizer: Any, more_ends: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        ends = dict.fromkeys(end for end in (tokenizer.eos_token_id, *more_ends) if end is not None)
        if not ends:
            raise PolicyError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no end token, so no response would end: set its "
                "eos_token and save it again"
            )
        self.end: tuple[int, ...] = tuple(ends)
        self.size: int = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def encode_messages(self, messages: Sequence[Turn], before: Sequence[Turn] = ()) -> list[int]:
        """The messages as the chat template writes them. Without a template, their texts as they are.

        The first messages of a conversation without a template follow a start token, if there is one.
        """
        if self.tokenizer.chat_template:
            tokens = self.encode(self._written(messages, before))
        elif before:
            tokens = [self.end[0], *self.encode("".join(message.text for message in messages))]
        else:
            tokens = self.tokenizer.encode("".join(message.text for message in messages))
            if tokens and tokens[-1] in self.end:  # some tokenizers end every text
                tokens = tokens[:-1]
        if not tokens:
            shown = ", ".join(repr(message.text) for message in messages)
            raise PolicyError(f"the prompt {shown} has no tokens, so there is nothing to continue: write a prompt")
        return tokens

    def _written(self, messages: Sequence[Turn], before: Sequence[Turn]) -> str:
        """What the template writes for these messages, up to where the next response begins.

        A template may write a message in another way because of those around it, so it is given all of them.
        """
        chat = [
            {"role": turn.role, "content": RESPONSE if turn.role == "assistant" else turn.text}
            for turn in (*before, *messages)
        ]
        roles = ", ".join(turn["role"] for turn in chat)
        try:
            text: str = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # of the template's own, or of Jinja
            raise PolicyError(
                f"the chat template of {self.tokenizer.name_or_path!r} rejects a conversation with the roles {roles}: "
                f"{error}. Let the environment use other roles, or change the template"
            ) from error
        if not before:
            return text
        _, found, after = text.rpartition(RESPONSE)
        if not found:
            raise PolicyError(
                f"the chat template of {self.tokenizer.name_or_path!r} leaves out the response in a conversation with "
                f"the roles {roles}, so what follows it cannot be found: change the template"
            )
        return after

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end token, without special tokens."""
        kept = []
        for token in tokens:
            if token in self.end:
                break
            kept.append(token)
        text: str = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA) of a Hugging Face policy, by peft. Only the adapters are trained and saved."""

    r: int = 16
    """The rank."""
    alpha: float = 32.0
    """The adapters' output is multiplied by alpha / r."""
    dropout: float = 0.0
    target_modules: str | tuple[str, ...] = "all-linear"
    """The names of the layers that get adapters, or `all-linear` for all but the output layer."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """More fields of `peft.LoraConfig`, such as `use_rslora`. The other ones need the `transformers` engine."""

    @property
    def scale(self) -> float:
        """The factor of the adapters' output."""
        return self.alpha / (math.sqrt(self.r) if self.options.get("use_rslora") else self.r)

    @property
    def unusual(self) -> str:
        """The options that do more than `scale` tells, for messages. Empty if there are none."""
        return ", ".join(name for name in self.options if name != "use_rslora")


@dataclass(frozen=True)
class HuggingFacePolicy:
    """Any causal language model that `transformers.AutoModelForCausalLM` loads. Code in a model's folder is not run.

    The weights have the names of `transformers`. With `lora` they are the adapters alone, such as
    `model.layers.0.self_attn.q_proj.lora_A.weight`; the base never changes.
    """

    path: str
    """The model's folder, or its name on the hub."""
    lora: LoraConfig | None = None
    """Train low-rank adapters; None trains all weights."""

    def config(self) -> dict[str, Any]:
        """The contents of the model's `config.json`, and the family's defaults for what it leaves out."""
        transformers = require("transformers", "a Hugging Face policy")
        config: dict[str, Any] = self._load(transformers.AutoConfig.from_pretrained).to_dict()
        return config

    def limits(self) -> tuple[int | None, int]:
        """The longest sequence that the model is made for, if it has such a limit, and the size of its vocabulary."""
        transformers = require("transformers", "a Hugging Face policy")
        config = self._load(transformers.AutoConfig.from_pretrained).get_text_config()
        return getattr(config, "max_position_embeddings", None), config.vocab_size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each trained weight by name."""
        return {name: tuple(tensor.shape) for name, tensor in self._module(on_meta=True).state_dict().items()}

    def initial_weights(self, seed: int = 0) -> dict[str, np.ndarray]:
        """The weights in the folder; with `lora`, new adapters from the seed."""
        from hookline.policies.weights import to_numpy

        return to_numpy(self.torch_module(seed=seed).state_dict())

    def torch_module(self, weights: Mapping[str, Any] | None = None, seed: int = 0) -> CausalLM:
        """The model in float32 for training, with these weights or the initial ones."""
        module = self._module(seed=seed)
        if weights is not None:
            from hookline.policies.weights import load_into_module

            load_into_module(module, {name: tuple(own.shape) for name, own in module.state_dict().items()}, weights)
        return module

    def tokenizer(self) -> HuggingFaceTokenizer:
        """The model's tokenizer. It ends a response at its end token and at those of the generation config."""
        transformers = require("transformers", "a Hugging Face policy")
        if Path(self.path).is_dir() and not any(
            file for pattern in TOKENIZER_FILES for file in Path(self.path).glob(pattern)
        ):
            # transformers would return a tokenizer without any tokens.
            raise PolicyError(
                f"policy {self.path!r}: the folder has no tokenizer: save the model's tokenizer there, "
                "with tokenizer.save_pretrained(folder)"
            )
        tokenizer = self._load(transformers.AutoTokenizer.from_pretrained)
        try:
            ends = self._load(transformers.GenerationConfig.from_pretrained).eos_token_id
        except PolicyError:
            ends = None  # not every model has a generation config
        return HuggingFaceTokenizer(tokenizer, () if ends is None else (ends,) if isinstance(ends, int) else ends)

    def jax_policy(self) -> Any:
        """The same model for the JAX engine. Raises a `PolicyError` for a family that it does not support."""
        from hookline.policies.llama import LlamaPolicy, UnsupportedArchitecture

        policy = LlamaPolicy.from_config(self.config())
        if self.lora is None:
            return policy
        if self.lora.unusual:
            raise UnsupportedArchitecture(f"its adapters have the options {self.lora.unusual}")
        policy.check_adapters(self.shapes())
        return replace(policy, lora_scale=self.lora.scale)

    def _module(self, *, seed: int = 0, on_meta: bool = False) -> CausalLM:
        require("torch", "a Hugging Face policy", "hf")
        transformers = require("transformers", "a Hugging Face policy")
        from hookline.policies.huggingface_torch import CausalLM, add_adapters, align_weights, on_meta_device

        if on_meta:
            model = on_meta_device(self._load(transformers.AutoConfig.from_pretrained))
        else:
            model = self._load(transformers.AutoModelForCausalLM.from_pretrained, dtype="float32")
            align_weights(model)
        return CausalLM(model if self.lora is None else add_adapters(model, self.lora, seed), self)

    def _load(self, from_pretrained: Any, **options: Any) -> Any:
        """What a `from_pretrained` of transformers returns for this path."""
        is_folder = Path(self.path).is_dir()
        if not is_folder and not HUB_NAME.fullmatch(self.path):
            raise PolicyError(f"policy {self.path!r}: there is no such folder")
        if is_folder and not (Path(self.path) / "config.json").exists():
            raise PolicyError(f"policy {self.path!r}: the folder has no config.json, so it holds no model")
        try:
            return from_pretrained(self.path, local_files_only=is_folder, **options)
        except Exception as error:  # of any kind, such as a KeyError for what a config lacks
            reason = str(error).strip().partition("\n")[0]
            if is_folder:
                raise PolicyError(f"policy {self.path!r} cannot be loaded: {reason}") from error
            raise PolicyError(
                f"policy {self.path!r}: there is no such folder, and it cannot be loaded from the Hugging Face hub: "
                f"{reason} Without a connection, give the path of the model's folder"
            ) from error
