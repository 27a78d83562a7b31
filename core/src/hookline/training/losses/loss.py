"""`Loss`: what every loss can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from hookline.training.errors import ExperienceError
from hookline.training.losses.schedule import LossSchedule, Window
from hookline.training.losses.shared import SharedLossData

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = ["Field", "Loss", "LossConfig", "LossTerm"]


class Field(NamedTuple):
    """One array that an experience holds for every row."""

    dtype: str | None = "float32"
    """None for any."""
    shape: tuple[int, ...] | None = None
    """The shape of one row; None for any."""
    computed: bool = False
    """A loss computes it from the rollouts; otherwise they bring it."""

    def agrees_with(self, other: Field) -> bool:
        """Whether one array can be both."""
        return (None in (self.dtype, other.dtype) or self.dtype == other.dtype) and (
            None in (self.shape, other.shape) or self.shape == other.shape
        )

    def __str__(self) -> str:
        return f"{self.dtype or 'any type'} of {'any shape' if self.shape is None else f'shape {self.shape}'}"


class LossTerm(NamedTuple):
    """A mean, and how much it was taken over, so that means of several ranks can be joined."""

    value: Tensor
    size: Tensor | int
    """How many rows or tokens."""
    slopes: tuple[tuple[Tensor, Tensor], ...] = ()
    """Pairs of a tensor and the gradient of `value` with respect to it, from a loss that knows them by itself; see
    `with_slopes`. Without them autograd is asked."""


@dataclass(kw_only=True)
class LossConfig:
    """The options that every loss has."""

    weight: float = 1.0
    """What the loss is multiplied by in the sum of all losses."""
    schedule: Sequence[Window | Mapping[str, Any]] = ()
    """When the loss applies: in any of these windows; always when there is none."""


class Loss:
    """A loss, one object for the length of a run. Override what it needs; `run_train` is the least."""

    Config: ClassVar[type[LossConfig]] = LossConfig
    """A dataclass of the loss's options."""

    def __init__(self, name: str, config: Any) -> None:
        self.name = name
        self.config = config
        self.weight: float = config.weight
        self.schedule = LossSchedule(config.schedule)
        self.experience: Experience | None = None

    def get_experience_spec(self) -> Mapping[str, Field]:
        """What the loss needs of each row of the experience, by name."""
        return {}

    def attach_policy(self, policy: Any) -> None:
        """Take a look at the policy as it is before training. Called once, before a run is restored."""

    def attach_replay_buffer(self, experience: Experience) -> None:
        """Take the buffer that every epoch's experience will be in. Called once, before the first epoch."""
        self.experience = experience

    def run_rollout(self, shared: SharedLossData) -> None:
        """Compute from the complete rollouts what the gradient steps will need, such as advantages."""

    def rows_to_learn_from(self, experience: Experience) -> Tensor | None:
        """Which rows of the complete experience can have a gradient, one flag for each; None for all.

        The others are left out of the minibatches, unless another loss wants them.
        """
        del experience
        return None

    def run_train(self, shared: SharedLossData) -> LossTerm:
        """The loss on one minibatch."""
        raise NotImplementedError(f"loss {self.name!r} ({type(self).__name__}) has no run_train(shared)")

    def state_dict(self) -> dict[str, Any]:
        """What the loss must remember for a resumed run, as JSON can hold it; nothing for one that only computes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Called with nothing when a run was saved without this loss."""

    def rollout(self, shared: SharedLossData, steps: int) -> None:
        """Run the rollout part, if the loss applies to any of the `steps` gradient steps that follow in this epoch."""
        if self.schedule.applies_in_epoch(shared.state, steps):
            self.run_rollout(shared)

    def train(self, shared: SharedLossData) -> LossTerm | None:
        """Run the train part, if the loss applies now."""
        return self.run_train(shared) if self.schedule.applies_now(shared.state) else None

    def mean(self, values: Tensor, mask: Tensor | None = None) -> LossTerm:
        """The mean of values, over those that a mask has as true."""
        if mask is None:
            return LossTerm(values.mean(), values.numel())
        count = mask.sum()
        return LossTerm((values * mask).sum() / count.clamp(min=1), count)

    def report(self, shared: SharedLossData, name: str, value: Tensor | float) -> None:
        """Have a number reported beside the loss, as `train/<loss>/<name>`."""
        shared.stats[f"{self.name}/{name}"] = value

    def of_batch(self, shared: SharedLossData, name: str) -> Tensor:
        """A field of the minibatch, with an error that names this loss when it is not there."""
        try:
            return shared.batch[name]
        except KeyError:
            raise ExperienceError(
                f"loss {self.name!r} needs {name!r}, which the data does not have; it has {', '.join(shared.batch)}"
            ) from None
