"""`RolloutEngine`: generates responses to prompts with the policy's weights.

Text lessons use the policy only through an engine. An engine may run in this process or on a server. Its interface is
token ids, NumPy arrays, weights by name and an rng key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from hookline.errors import HooklineError
from hookline.policies.protocol import HasFullStateDict, HuggingFaceSpecification

if TYPE_CHECKING:
    import jax
    import numpy as np

    from hookline.rollout.config import SamplingConfig

__all__ = ["EngineError", "EngineFactory", "EngineRequest", "Generated", "RolloutEngine"]


class EngineError(HooklineError):
    """An engine cannot generate with this policy."""


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is built for."""

    policy: Any
    """The policy's specification: `TransformerPolicy`, `HuggingFacePolicy`, or one of your own. None for a torch module
    without one."""
    module: Any = None
    """The trainer's torch module, if the engine runs in the trainer's process. An engine may read its weights in place.
    Otherwise an engine loads the weights by the specification."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes in bfloat16. Log-probabilities are float32 in either case."""
    device: str = "auto"
    """The device of an engine that has its own weights: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`."""
    seed: int = 0
    """The seed of the weights of a specification without trained ones."""

    @property
    def name(self) -> str:
        """The class of the policy, for messages."""
        return type(self.policy if self.module is None else self.module).__name__

    def weights(self) -> Mapping[str, Any]:
        """All weights by name: the module's own tensors, or those of the specification."""
        module = self.own_module()
        if module is None:
            initial: Mapping[str, Any] = self.policy.initial_weights(self.seed)
            return initial
        if isinstance(module, HasFullStateDict):
            return module.full_state_dict()
        whole: Mapping[str, Any] = module.state_dict()
        return whole

    def own_module(self) -> Any:
        """The module, or a new one of a Hugging Face policy, whose weights are read with torch. Else None."""
        if self.module is None and isinstance(self.policy, HuggingFaceSpecification):
            return self.policy.torch_module(seed=self.seed)
        return self.module


class Generated(NamedTuple):
    """Responses to a batch of prompts, (prompts x samples, new tokens) each. The samples of a prompt are adjacent."""

    tokens: np.ndarray
    """The response, including its stop token. Tokens after it have no meaning."""
    logprobs: np.ndarray
    """The log-probability of each token under the distribution that it was sampled from.

    That is the policy's logits divided by the temperature, truncated by top-k and then top-p, and renormalised. Greedy
    tokens have the policy's own log-probability.
    """
    valid: np.ndarray
    """True for the tokens of the response, including its stop token."""
    log_mass: np.ndarray | None = None
    """The log of the probability mass that top-k and top-p kept at each token. None without either."""


class RolloutEngine(Protocol):
    """Samples responses with one version of the weights. A new engine has those of `EngineRequest.weights()`."""

    @property
    def context(self) -> int:
        """The longest sequence, prompt and response together."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""

    @property
    def version(self) -> int | None:
        """The version of the current weights."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        key: jax.Array,
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
    ) -> Generated:
        """Continue each prompt `sampling.samples_per_prompt` times.

        :param key: the rng key. The same key and weights generate the same tokens.
        :param stop: the tokens that end a response. Without any, responses have `max_new_tokens`.
        """

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Sample with these weights from now on. Weights that are not given keep their values.

        The arrays may be read in place, so they must not change while `generate` runs. The arrays of a module that the
        engine was built for keep their values: other weights are never written into them.

        :param version: None for weights without a version, such as those of a checkpoint to evaluate.
        """


EngineFactory = Callable[[EngineRequest], RolloutEngine]
"""Builds an engine. Raises an `EngineError`, which names an engine that can, for a policy that it does not support."""
