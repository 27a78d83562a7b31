"""An engine of your own: responses are sampled by a plain loop in torch, without a cache.

    python examples/custom_engine.py

It generates with any torch module whose `forward(tokens, valid)` returns logits, so it also serves policies without a
JAX forward. docs/engines.md explains the interface. `hookline.testing.check_engine` compares the engine with the
module's own forward. In a distribution, the entry point `plain-engine = "my_package:PlainEngines"` adds the engine to
every run, and `engine = "plain"` chooses it. torch is imported where it is used, because plugins are imported at every
start of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from hookline import PluginManager
from hookline.policies import TransformerPolicy
from hookline.policies.protocol import PolicySpecification
from hookline.rollout import CurriculumConfig, SamplingConfig
from hookline.rollout.engines import EngineError, EngineFactory, EngineRequest, Generated
from hookline.rollout.text import CharacterTokenizer, arithmetic_lessons
from hookline.training import RolloutConfig, Trainer, TrainerConfig
from hookline_hookspecs import hookimpl

if TYPE_CHECKING:
    import jax
    from torch import Tensor


@runtime_checkable
class Supported(PolicySpecification, Protocol):
    """What the engine generates with. The `forward(tokens, valid)` of its torch module returns logits."""

    context: int
    vocabulary: int


class PlainEngine:
    def __init__(self, request: EngineRequest) -> None:
        import torch

        if not isinstance(request.policy, Supported):
            raise EngineError(
                "the plain engine supports specifications with a context and a vocabulary, such as TransformerPolicy, "
                f'and the policy is a {request.name}: engine = "auto" finds an engine that supports it'
            )
        # A copy: other weights must not be written into the module that is trained.
        self._module = request.policy.torch_module(request.weights()).eval()
        self._dtype = torch.bfloat16 if request.precision == "bf16" else torch.float32
        self._module.to(self._dtype)
        self.context = request.policy.context
        self.vocabulary = request.policy.vocabulary
        self.version: int | None = None

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        import torch

        own = self._module.state_dict()  # these tensors share the memory of the module's parameters
        for name, value in weights.items():
            own[name].copy_(torch.as_tensor(value))
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
        import jax
        import torch

        rng = torch.Generator().manual_seed(int(jax.random.bits(key)))
        rows = [list(prompt) for prompt in prompts for _ in range(sampling.samples_per_prompt)]
        longest = max(map(len, rows))
        tokens = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        valid = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
        logprobs, log_mass = [], []
        going = torch.ones(len(rows), dtype=torch.bool)
        for _ in range(max_new_tokens):
            with torch.no_grad():
                logits = self._module(tokens, valid)[:, -1].float() / (sampling.temperature or 1.0)
            kept = truncated(logits, sampling) if sampling.temperature else logits
            shares = kept.softmax(-1)
            chosen = torch.multinomial(shares, 1, generator=rng) if sampling.temperature else shares.argmax(-1)[:, None]
            logprobs.append(kept.log_softmax(-1).gather(1, chosen)[:, 0])
            log_mass.append(kept.logsumexp(-1) - logits.logsumexp(-1))
            tokens, valid = torch.cat([tokens, chosen], 1), torch.cat([valid, going[:, None]], 1)
            going = going & ~torch.isin(chosen[:, 0], torch.tensor(stop, dtype=torch.long))
        truncates = sampling.temperature > 0 and (sampling.top_k is not None or sampling.top_p is not None)
        return Generated(
            tokens[:, longest:].int().numpy(),
            torch.stack(logprobs, 1).numpy(),
            valid[:, longest:].numpy(),
            torch.stack(log_mass, 1).numpy() if truncates else None,
        )


def truncated(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """-inf for tokens that are not among the `top_k` likeliest, or of those the fewest that reach `top_p`."""
    if sampling.top_k is not None:
        smallest = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -np.inf)
    if sampling.top_p is not None:
        ordered, order = logits.softmax(-1).sort(descending=True)
        before = ordered.cumsum(-1) - ordered
        logits = logits.masked_fill(before.scatter(1, order, before) >= sampling.top_p, -np.inf)
    return logits


class PlainEngines:
    """The plugin."""

    @hookimpl
    def register_engines(self) -> Mapping[str, EngineFactory]:
        return {"plain": PlainEngine}


def main() -> None:
    plugins = PluginManager()
    plugins.register(PlainEngines(), "plain-engine")
    config = TrainerConfig(
        epochs=2, rollout=RolloutConfig(num_environments=8, samples_per_prompt=4, minibatches=1, engine="plain")
    )
    lessons = CurriculumConfig(arithmetic_lessons("addition-1"), micro_eval_frequency=None, eval_frequency=None)
    policy = TransformerPolicy(CharacterTokenizer().size, width=32, layers=1, heads=2)
    trainer = Trainer(config, lessons, policy, plugins=plugins)
    state = trainer.train()
    print(f"{state.step} steps of GRPO, sampled by {type(trainer.worker.engine).__name__}")


if __name__ == "__main__":
    main()
