"""What passes between the losses of one minibatch, or of one rollout phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = ["SharedLossData"]


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
        *,
        minibatch: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.state = state
        """The run."""
        self.policy = policy
        """The torch module that is trained."""
        self.batch = batch or {}
        """The rows to compute the loss on: of the experience, or examples of the dataset; empty in a rollout phase."""
        self.minibatch = self.batch if minibatch is None else minibatch
        """All rows of the gradient step. `batch` is a part of them where gradients are accumulated."""
        self.experience = experience
        """The whole experience of the epoch; None where there is a dataset instead."""
        self._stats: dict[str, Tensor | float] = {}

    def report(self, name: str, value: Tensor | float) -> None:
        """Have a number reported beside the losses; a tensor has no dimensions."""
        self._stats[name] = value

    def take_stats(self) -> dict[str, Tensor | float]:
        """The numbers reported since the last call, by name."""
        stats, self._stats = self._stats, {}
        return stats
