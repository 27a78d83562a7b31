"""`HuggingFacePolicy`: a causal language model of `transformers`, from a folder or from the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.extras import require
from hookline.policies.huggingface_tokenizer import HuggingFaceTokenizer
from hookline.policies.protocol import PolicyError

if TYPE_CHECKING:
    import numpy as np

    from hookline.policies.huggingface_torch import CausalLM

__all__ = ["HuggingFacePolicy", "LoraConfig"]

HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""What may be the name of a model on the hub. Everything else is a path."""


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

    @property
    def scale(self) -> float:
        """The factor of the adapters' output."""
        return self.alpha / self.r


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
        """The contents of the model's `config.json`."""
        transformers = require("transformers", "a Hugging Face policy")
        config: dict[str, Any] = self._load(transformers.PreTrainedConfig.get_config_dict)[0]
        return config

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
        if Path(self.path).is_dir() and not any(Path(self.path).glob("tokenizer*")):
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
        from hookline.policies.llama import LlamaPolicy

        return LlamaPolicy.from_config(self.config(), lora_scale=1.0 if self.lora is None else self.lora.scale)

    def _module(self, *, seed: int = 0, on_meta: bool = False) -> CausalLM:
        require("torch", "a Hugging Face policy", "hf")
        transformers = require("transformers", "a Hugging Face policy")
        from hookline.policies.huggingface_torch import CausalLM, add_adapters, on_meta_device

        if on_meta:
            model = on_meta_device(self._load(transformers.AutoConfig.from_pretrained))
        else:
            model = self._load(transformers.AutoModelForCausalLM.from_pretrained, dtype="float32")
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
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            if is_folder:
                raise PolicyError(f"policy {self.path!r} cannot be loaded: {reason}") from error
            raise PolicyError(
                f"policy {self.path!r}: there is no such folder, and it cannot be loaded from the Hugging Face hub: "
                f"{reason} Without a connection, give the path of the model's folder"
            ) from error
