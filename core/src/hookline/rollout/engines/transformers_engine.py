"""`TransformersEngine`: generates text with any Hugging Face causal LM, by its `generate` with a key-value cache.

`generate` runs the model and stops responses. `_Sampler`, the only logits processor, samples the tokens: it leaves
`generate` one token to choose from. So the log-probabilities are those of the distribution that was sampled from, no
logits are kept, and the rng is the engine's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Literal

import jax
import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from hookline.policies.protocol import HasFullStateDict
from hookline.rollout.config import SamplingConfig
from hookline.rollout.engines.engine import EngineError, EngineRequest, Generated

__all__ = ["TransformersEngine"]

PAD: Final = 0

UNLIMITED: Final = 2**31 - 1
"""The context of a model without a longest sequence, such as one with recurrent layers only."""


class TransformersEngine:
    """Generates with the trainer's module in place, or with a module of its own.

    With the trainer's module, its tensors are read where they are. Other weights are put in for the time of a
    `generate` and taken out after it, so that an evaluation does not change what is trained.

    :param module: a `CausalLM`: its `model` is the Hugging Face model.
    """

    def __init__(self, module: nn.Module, request: EngineRequest) -> None:
        self._request = request
        self._module: Any = module
        self._is_shared = module is request.module
        if not self._is_shared:
            module.to(_device(request.device))
        self._bf16 = request.precision == "bf16"
        self._others: dict[str, Tensor] = {}
        """Weights that are not the shared module's own."""
        config = self._model.config.get_text_config()
        self.context: int = getattr(config, "max_position_embeddings", None) or UNLIMITED
        self.vocabulary: int = config.vocab_size
        self.version: int | None = None

    @property
    def _model(self) -> Any:
        """The Hugging Face model. With adapters it is the base model, whose layers have them."""
        model = self._module.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        if self._is_shared and any(hasattr(parameter, "full_tensor") for parameter in self._module.parameters()):
            # FSDP2 has divided the module among the ranks since, and each rank generates by itself.
            self._module = self._request.policy.torch_module().to(_device(self._request.device))
            self._is_shared = False
        own = self._tensors()
        for name, value in weights.items():
            given = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
            if self._is_shared:
                self._others.pop(name, None)
                if given.data_ptr() != own[name].data_ptr():
                    self._others[name] = given.clone()
            else:
                own[name].copy_(given)
        self.version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        key: jax.Array,
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
    ) -> Generated:
        model = self._model
        sampler = _Sampler(sampling, torch.Generator(model.device).manual_seed(_seed(key)))
        config = GenerationConfig(
            max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=list(stop) or None, pad_token_id=PAD
        )
        rows = [prompt for prompt in prompts for _ in range(sampling.samples_per_prompt)]
        made: list[Generated] = []
        batches = self._batches(rows)
        with self._in_eval_mode(), self._weights_in_place():
            for batch in batches:
                tokens, valid = _padded([rows[index] for index in batch], model.device)
                model.generate(tokens, attention_mask=valid, generation_config=config, logits_processor=[sampler])
                made.append(sampler.generated(max_new_tokens, stop))
        if len(made) == 1:
            return made[0]
        order = np.argsort(np.concatenate(batches))
        return Generated._make(
            None if arrays[0] is None else np.concatenate(arrays)[order] for arrays in zip(*made, strict=True)
        )

    def _batches(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """The indices of the rows that are generated together: as many as the model does right."""
        match self._together:
            case "all":
                return [list(range(len(rows)))]
            case "one length":
                lengths = sorted({len(row) for row in rows})
                return [[index for index, row in enumerate(rows) if len(row) == length] for length in lengths]
            case "alone":
                return [[index] for index in range(len(rows))]

    @cached_property
    def _together(self) -> Literal["all", "one length", "alone"]:
        """Which rows make a batch whose logits are those of each whole sequence.

        Known where the cache keeps keys and values, tried with other caches: some recurrent models of transformers
        read the padding, and some mix up the rows of a batch. Raises an `EngineError` if a row alone is wrong too.
        """
        if getattr(self._module, "has_plain_cache", False):
            return "all"
        short, long = ([token % self.vocabulary for token in tokens] for tokens in ([5, 7, 6], [6, 5, 8, 4, 7, 9]))
        if self._is_exact_for([short, long]):
            return "all"
        if self._is_exact_for([short, long[:3]]):
            return "one length"
        if self._is_exact_for([short]):
            return "alone"
        raise EngineError(
            f"the transformers engine cannot generate with a {type(self._model).__name__}: with its cache, tokens "
            "after the first have other logits than in the whole sequence. Use an engine of a plugin"
        )

    def _is_exact_for(self, prompts: Sequence[Sequence[int]]) -> bool:
        """Whether the logits of `generate` with these prompts are those of each sequence read by itself."""
        config = GenerationConfig(
            max_new_tokens=3, do_sample=False, pad_token_id=PAD, output_logits=True, return_dict_in_generate=True
        )
        tokens, valid = _padded(prompts, self._model.device)
        with self._in_eval_mode():
            made = self._model.generate(tokens, attention_mask=valid, generation_config=config)
            for row, prompt in enumerate(prompts):
                expected = self._model(made.sequences[row : row + 1, -len(prompt) - 3 : -1]).logits[0, -3:]
                difference = (torch.stack(made.logits, 1)[row] - expected).abs().max()
                if difference > torch.finfo(expected.dtype).eps ** 0.5 * expected.abs().max():
                    return False
        return True

    @contextmanager
    def _in_eval_mode(self) -> Iterator[None]:
        """Without gradients, dropout and the model's own settings of sampling; in the engine's precision."""
        model = self._model
        with (
            torch.no_grad(),
            _evaluating(self._module),
            _without_generation_config(model),
            torch.autocast(model.device.type, torch.bfloat16, enabled=self._bf16),
        ):
            yield

    def _tensors(self) -> Mapping[str, Tensor]:
        """The module's weights by name. They share the memory of its parameters."""
        if isinstance(self._module, HasFullStateDict):
            return self._module.full_state_dict()
        whole: Mapping[str, Tensor] = self._module.state_dict()
        return whole

    @contextmanager
    def _weights_in_place(self) -> Iterator[None]:
        own = self._tensors() if self._others else {}
        before = {name: own[name].clone() for name in self._others}
        try:
            for name, value in self._others.items():
                own[name].copy_(value)
            yield
        finally:
            for name, value in before.items():
                own[name].copy_(value)


class _Sampler:
    """A logits processor that samples a token for each row, and leaves no other with a finite score."""

    def __init__(self, sampling: SamplingConfig, rng: torch.Generator) -> None:
        self._sampling = sampling
        self._rng = rng
        self._is_truncated = sampling.temperature > 0 and (sampling.top_k is not None or sampling.top_p is not None)
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        """Tokens, their log-probabilities, and the log of the mass that truncation kept, (rows,) each."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        del input_ids
        logits = scores.float() / (self._sampling.temperature or 1.0)
        if self._sampling.temperature == 0:
            token, kept = logits.argmax(-1, keepdim=True), logits
        else:
            kept = _truncated(logits, self._sampling) if self._is_truncated else logits
            # The largest of logits with Gumbel noise is a sample of their softmax.
            noise = torch.empty_like(kept).exponential_(generator=self._rng).log()
            token = (kept - noise).argmax(-1, keepdim=True)
        mass = kept.logsumexp(-1)
        self._steps.append((token[:, 0], kept.gather(1, token)[:, 0] - mass, mass - logits.logsumexp(-1)))
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)

    def generated(self, new_tokens: int, stop: Sequence[int]) -> Generated:
        """:param new_tokens: the width of the arrays. `generate` stops early when all responses have ended."""
        tokens, logprobs, log_mass = (torch.stack(own, 1).cpu().numpy() for own in zip(*self._steps, strict=True))
        self._steps.clear()
        ends = np.isin(tokens, stop)
        valid: np.ndarray = np.cumsum(ends, axis=1) - ends == 0  # no stop token before this one
        missing = ((0, 0), (0, new_tokens - tokens.shape[1]))
        return Generated(
            np.pad(np.where(valid, tokens, PAD).astype(np.int32), missing),
            np.pad(np.where(valid, logprobs, 0.0), missing),
            np.pad(valid, missing),
            np.pad(np.where(valid, log_mass, 0.0), missing) if self._is_truncated else None,
        )


def _padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts with padding on the left, and 1 for each of their own tokens."""
    longest = max(1, *map(len, prompts))
    tokens = torch.full((len(prompts), longest), PAD)
    valid = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        valid[row, longest - len(prompt) :] = 1
    return tokens.to(device), valid.to(device)


def _truncated(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """The logits of the `top_k` likeliest tokens, and of those the fewest whose probabilities reach `top_p`."""
    kept, tokens = logits.topk(min(sampling.top_k or logits.shape[-1], logits.shape[-1]), dim=-1)
    if sampling.top_p is not None:
        shares = kept.softmax(-1)
        # The likeliest token is always kept, and so is the one that reaches `top_p`.
        kept = kept.masked_fill(shares.cumsum(-1) - shares >= sampling.top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter_(1, tokens, kept)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode: dropout is off, and gradient checkpointing, which has no cache."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def _without_generation_config(model: Any) -> Iterator[None]:
    """The model's own sampling settings fill the gaps of those that are passed, such as a repetition penalty."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _seed(key: jax.Array) -> int:
    words = np.asarray(jax.random.key_data(key)).ravel().astype(np.uint64)
    return int(np.random.SeedSequence(words.tolist()).generate_state(1, np.uint64)[0])


def _device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
