"""`RolloutEngine`: generates responses to prompts with the policy's weights.

Text lessons use the policy only through an engine. An engine may run in this process or on a server. Its interface is
token ids, NumPy arrays, weights by name and an rng key.
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
    """Samples responses with one version of the weights."""

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
        stop: int | None = None,
    ) -> Generated:
        """Continue each prompt `sampling.samples_per_prompt` times.

        :param key: the rng key. The same key and weights generate the same tokens.
        :param stop: the token that ends a response. None to continue to `max_new_tokens`.
        """

    def update_weights(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Sample with these weights from now on.

        :param version: None for weights without a version, such as those of a checkpoint to evaluate.
        """
