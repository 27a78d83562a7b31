"""`RolloutEngine`: continues prompts with the policy's weights.

Text lessons talk to an engine and know nothing else of the policy. An engine may compute in this process or ask a
server; all that crosses are token ids, NumPy arrays, weights by name and a rng key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import jax
    import numpy as np

    from hookline.rollout.config import SamplingConfig

__all__ = ["Generated", "RolloutEngine"]


class Generated(NamedTuple):
    """Responses to a batch of prompts, (prompts x samples, new tokens) each. The samples of a prompt are neighbours."""

    tokens: np.ndarray
    """The response, its stop token included; what follows it has no meaning."""
    logprobs: np.ndarray
    """The log-probability of each token under the distribution that it was sampled from: the policy's logits divided by
    the temperature, cut by top-k and then top-p, and normalised again. Greedy tokens have the policy's own."""
    valid: np.ndarray
    """True for the tokens of the response, its stop token included."""
    log_mass: np.ndarray | None = None
    """The log of the probability that top-k and top-p kept at each token; None where the sampling has neither."""


class RolloutEngine(Protocol):
    """Holds one version of the weights, and samples with it."""

    @property
    def context(self) -> int:
        """The longest sequence, prompt and response together."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""

    @property
    def version(self) -> int | None:
        """That of the weights it holds."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        key: jax.Array,
        *,
        max_new_tokens: int,
        stop: int | None = None,
    ) -> Generated:
        """Continue each prompt `sampling.samples_per_prompt` times.

        :param key: decides every draw. One key and the same weights give the same tokens.
        :param stop: the token that ends a response; None to go on to `max_new_tokens`.
        """

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Sample with these weights from now on.

        :param version: None for weights that are no version of the run, such as those of a checkpoint to evaluate.
        """
