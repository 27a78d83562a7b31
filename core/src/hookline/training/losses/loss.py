"""`Loss`: what a loss is told, asked for and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from hookline.policies.forward_torch import control_policy, text_policy
from hookline.training.errors import ExperienceError
from hookline.training.losses.schedule import LossSchedule, Window
from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from hookline.training.experience import Experience
    from hookline_hookspecs import TrainerState

__all__ = [
    "ActionsForward",
    "Field",
    "Loss",
    "LossConfig",
    "SharedLossData",
    "actions_forward",
    "masked_mean",
    "tokens_forward",
    "trained_tokens",
]


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


class Field(NamedTuple):
    """One array that an experience holds for every row."""

    dtype: str | None = "float32"
    """None for any."""
    shape: tuple[int, ...] | None = None
    """The shape of one row; None for any."""
    computed: bool = False
    """A loss computes it from the rollouts; otherwise they bring it."""
    optional: bool = False
    """The loss does without it where the data does not have it."""

    def agrees_with(self, other: Field) -> bool:
        """Whether one array can be both."""
        return (None in (self.dtype, other.dtype) or self.dtype == other.dtype) and (
            None in (self.shape, other.shape) or self.shape == other.shape
        )

    def __str__(self) -> str:
        return f"{self.dtype or 'any type'} of {'any shape' if self.shape is None else f'shape {self.shape}'}"


@dataclass(kw_only=True)
class LossConfig:
    """The options that every loss has."""

    weight: float = 1.0
    """What the loss is multiplied by in the sum of all losses."""
    schedule: Sequence[Window | Mapping[str, Any]] = ()
    """When the loss applies: in any of these windows; always when there is none."""


class Loss:
    """A loss, one object for the length of a run. Override what it needs; `run_train` is the least.

    Its schedule says when `run_rollout` and `run_train` are called. The methods named `on_...` always are, at the
    events of these names and before any plugin.
    """

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

    def on_new_training_run(self, trainer_state: TrainerState) -> None:
        """A run is about to begin; one that is resumed is restored after this."""

    def on_rollout_start(self, trainer_state: TrainerState) -> None:
        """A rollout is about to be made."""

    def on_mb_end(self, trainer_state: TrainerState) -> None:
        """A gradient step has been taken."""

    def on_train_phase_end(self, trainer_state: TrainerState) -> None:
        """The epoch's gradient steps have been taken."""

    def run_rollout(self, shared: SharedLossData) -> None:
        """Compute from the complete rollouts what the gradient steps will need, such as advantages."""

    def rows_to_learn_from(self, experience: Experience) -> Tensor | None:
        """Which rows of the complete experience can have a gradient, one flag for each; None for all.

        The others are left out of the minibatches, unless another loss wants them.
        """
        del experience
        return None

    def run_train(self, shared: SharedLossData) -> Tensor:
        """The loss on `shared.batch`: one number, the mean over what `count` counts."""
        raise NotImplementedError(f"loss {self.name!r} ({type(self).__name__}) has no run_train(shared)")

    def count(self, batch: Mapping[str, Tensor]) -> Tensor | int:
        """How many rows or tokens of a batch the loss is the mean of: the weight of that mean beside those of other
        parts of the minibatch and of other ranks."""
        return len(next(iter(batch.values())))

    def state_dict(self) -> dict[str, Any]:
        """What the loss must remember for a resumed run, as JSON can hold it; nothing for one that only computes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Called with nothing when a run was saved without this loss."""

    def rollout(self, shared: SharedLossData, steps: int) -> None:
        """Run the rollout part, if the loss applies to any of the `steps` gradient steps that follow in this epoch."""
        if self.schedule.applies_in_epoch(shared.state, steps):
            self.run_rollout(shared)

    def train(self, shared: SharedLossData) -> Tensor | None:
        """Run the train part, if the loss applies now."""
        return self.run_train(shared) if self.schedule.applies_now(shared.state) else None

    def report(self, shared: SharedLossData, name: str, value: Tensor | float) -> None:
        """Have a number reported beside the loss, as `train/<loss>/<name>`."""
        shared.report(f"{self.name}/{name}", value)

    def of_batch(self, batch: Mapping[str, Tensor], name: str) -> Tensor:
        """A field of a batch, with an error that names this loss when it is not there."""
        try:
            return batch[name]
        except KeyError:
            raise ExperienceError(
                f"loss {self.name!r} needs {name!r}, which the data does not have; it has {', '.join(batch)}"
            ) from None


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values that a mask has as true; 0 where it has none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


class ActionsForward(NamedTuple):
    """The policy at each row of a control minibatch."""

    logprobs: Tensor
    """Of the actions that were taken."""
    entropy: Tensor
    values: Tensor


def actions_forward(shared: SharedLossData) -> ActionsForward:
    """The policy on the minibatch's observations and actions."""
    forward: ActionsForward | None = shared.get("actions_forward")
    if forward is None:
        evaluated = control_policy(shared.policy).evaluate_actions(shared.batch["obs"], shared.batch["actions"])
        forward = shared["actions_forward"] = ActionsForward(*evaluated)
    return forward


def tokens_forward(shared: SharedLossData, temperature: Tensor | None = None) -> Tensor:
    """The log-probability of each of the minibatch's tokens but the first, (rows, length - 1).

    :param temperature: what each row's logits are divided by; None for the policy's own distribution.
    """
    name = "tokens_forward" if temperature is None else "sampling_forward"
    logprobs: Tensor | None = shared.get(name)
    if logprobs is None:
        policy, batch = text_policy(shared.policy), shared.batch
        logprobs = shared[name] = policy.token_logprobs(batch["tokens"], batch["valid"], temperature)
    return logprobs


def trained_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """True for the tokens, all but the first, that are trained on."""
    return batch["loss_mask"][:, 1:]
