"""What passes between the losses of one minibatch, or of one rollout phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = ["Evaluation", "SharedLossData"]

Evaluation = Callable[[Tensor, Tensor], tuple[tuple[Tensor, Tensor, Tensor], Callable[[], None]]]
"""From observations and actions to log-probabilities, entropy and values, all of them leaves to autograd, and a
function that carries on their gradients to the parameters."""


class SharedLossData(dict[str, Any]):
    """A dictionary that losses write to and read from, in the order in which the config names them.

    What one loss has computed, such as the policy's forward pass, the next one finds here.
    """

    def __init__(
        self,
        state: TrainerState,
        policy: Any,
        batch: Mapping[str, Tensor] | None = None,
        experience: Experience | None = None,
        by_hand: Evaluation | None = None,
    ) -> None:
        super().__init__()
        self.state = state
        """The run."""
        self.policy = policy
        """The torch module that is trained."""
        self.batch = batch or {}
        """The minibatch: rows of the experience, or examples of the dataset; empty in a rollout phase."""
        self.experience = experience
        """The whole experience of the epoch; None where there is a dataset instead."""
        self.by_hand = by_hand
        """The policy's own way to evaluate actions without autograd, where it has one and gradients are wanted."""
        self.pull_backs: list[Callable[[], None]] = []
        """Called when the losses have been differentiated: each carries gradients on, from where autograd ends."""
        self.stats: dict[str, Tensor | float] = {}
        """Numbers to report beside the losses, by name; tensors have no dimensions."""
