"""`Loss`, its schedule, the data that losses share, and the policy's forward passes that they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from hookline.errors import did_you_mean
from hookline.policies.forward_torch import control_policy, text_policy
from hookline.training.errors import ExperienceError, TrainerConfigError
from hookline_hookspecs import Cycle, Every, Schedule, TrainerState

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = [
    "ActionsForward",
    "Field",
    "Loss",
    "LossConfig",
    "LossSchedule",
    "LossWindow",
    "SharedLossData",
    "actions_forward",
    "experience_forward",
    "masked_mean",
    "tokens_forward",
    "trained_tokens",
]


class SharedLossData(dict[str, Any]):
    """A dictionary that all losses of a minibatch share. They run in the config's order.

    A loss stores results that later losses can reuse, such as the policy's forward pass.
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
        """The state of the run."""
        self.policy = policy
        """The torch module being trained."""
        self.batch = batch or {}
        """The rows to compute the loss on, from the experience or the dataset. Empty in a rollout phase."""
        self.minibatch = self.batch if minibatch is None else minibatch
        """All rows of the gradient step. With gradient accumulation, `batch` is a part of them."""
        self.experience = experience
        """The whole experience of the epoch; None when training on a dataset."""
        self._stats: dict[str, Tensor | float] = {}

    def report(self, name: str, value: Tensor | float) -> None:
        """Report a number along with the losses. A tensor must be a scalar."""
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
    """True when a loss computes it from the rollouts; False when the rollouts contain it."""
    optional: bool = False
    """The loss also works on data that lacks it."""

    def agrees_with(self, other: Field) -> bool:
        """Whether one array can satisfy both."""
        return (None in (self.dtype, other.dtype) or self.dtype == other.dtype) and (
            None in (self.shape, other.shape) or self.shape == other.shape
        )

    def __str__(self) -> str:
        return f"{self.dtype or 'any type'} of {'any shape' if self.shape is None else f'shape {self.shape}'}"


@dataclass(frozen=True)
class LossWindow:
    """From `begin` (inclusive) to `end` (exclusive), at the `active` positions of each cycle."""

    begin: int = 0
    end: int | None = None
    """None for no end."""
    cycle: int = 1
    """The length of a cycle. Cycles start at epoch or step 0, not at `begin`."""
    active: tuple[int, ...] = (0,)
    """The positions in a cycle, from 0, at which the loss applies."""
    clock: Literal["epoch", "step"] = "epoch"

    def __post_init__(self) -> None:
        object.__setattr__(self, "active", tuple(sorted(set(self.active))))
        if self.begin < 0 or (self.end is not None and self.end <= self.begin):
            raise TrainerConfigError(f"{self} never applies: it needs 0 <= begin < end")
        if self.cycle < 1 or not self.active or not all(0 <= position < self.cycle for position in self.active):
            raise TrainerConfigError(f"{self}: active must name positions from 0 to {self.cycle - 1}")
        if self.clock not in (clocks := ("epoch", "step")):
            raise TrainerConfigError(f"{self}: clock must be 'epoch' or 'step'{did_you_mean(self.clock, clocks)}")

    @cached_property
    def schedule(self) -> Schedule:
        return Cycle(self.cycle, self.active) & Every(1, self.begin - 1, None if self.end is None else self.end - 1)


class LossSchedule:
    """Applies in any of its windows. Without windows it always applies."""

    def __init__(self, windows: Iterable[LossWindow | Mapping[str, Any]] = ()) -> None:
        self.windows: Sequence[LossWindow] = [_as_window(window) for window in windows]

    def applies_now(self, state: TrainerState) -> bool:
        """Whether the loss applies to the next gradient step."""
        return self.applies_in_epoch(state, 1)

    def applies_in_epoch(self, state: TrainerState, steps: int) -> bool:
        """Whether the loss applies to any of the next `steps` gradient steps of this epoch."""
        return not self.windows or any(
            state.epoch in window.schedule
            if window.clock == "epoch"
            else window.schedule.is_due(state.step - 1, state.step + steps - 1)
            for window in self.windows
        )


def _as_window(window: LossWindow | Mapping[str, Any]) -> LossWindow:
    if isinstance(window, LossWindow):
        return window
    known = [field.name for field in fields(LossWindow)]
    for key in window:
        if key not in known:
            raise TrainerConfigError(f"a window of a schedule has no {key!r}{did_you_mean(key, known)}")
    return LossWindow(**window)


@dataclass(kw_only=True)
class LossConfig:
    """The options that every loss has."""

    weight: float = 1.0
    """The factor of the loss in the sum of all losses."""
    schedule: Sequence[LossWindow | Mapping[str, Any]] = ()
    """The loss applies in any of these windows. Without windows it always applies."""


class Loss:
    """A term of the objective. One object lives for the whole run. A subclass must implement `run_train`.

    `run_rollout` and `run_train` are called when the schedule applies. The `on_...` methods are always called, at the
    events of the same names and before any plugin.
    """

    Config: ClassVar[type[LossConfig]] = LossConfig
    """The dataclass of the loss's options."""

    def __init__(self, name: str, config: Any) -> None:
        self.name = name
        self.config = config
        self.weight: float = config.weight
        self.schedule = LossSchedule(config.schedule)
        self.experience: Experience | None = None

    def get_experience_spec(self) -> Mapping[str, Field]:
        """The fields that the loss needs in each row of the experience, by name."""
        return {}

    def attach_policy(self, policy: Any) -> None:
        """Receive the initial policy. Called once, before a checkpoint is restored."""

    def attach_replay_buffer(self, experience: Experience) -> None:
        """Receive the buffer that holds each epoch's experience. Called once, before the first epoch."""
        self.experience = experience

    def on_new_training_run(self, trainer_state: TrainerState) -> None:
        """A run is about to begin. A resumed run is restored after this."""

    def on_rollout_start(self, trainer_state: TrainerState) -> None:
        """A rollout is about to be made."""

    def on_mb_end(self, trainer_state: TrainerState) -> None:
        """A gradient step has been taken."""

    def on_train_phase_end(self, trainer_state: TrainerState) -> None:
        """The epoch's gradient steps have been taken."""

    def run_rollout(self, shared: SharedLossData) -> None:
        """Compute fields for the gradient steps, such as advantages, from the epoch's complete rollouts."""

    def rows_to_learn_from(self, experience: Experience) -> Tensor | None:
        """One flag per row of the complete experience: whether it can have a gradient. None for all rows.

        The other rows are left out of the minibatches, unless another loss needs them.
        """
        del experience
        return None

    def run_train(self, shared: SharedLossData) -> Tensor:
        """The loss on `shared.batch`, a scalar: the mean over the rows or tokens that `count` counts."""
        raise NotImplementedError(f"loss {self.name!r} ({type(self).__name__}) has no run_train(shared)")

    def count(self, batch: Mapping[str, Tensor]) -> Tensor | int:
        """The number of rows or tokens that the loss averages over.

        It weights this batch's mean against the other parts of the minibatch and the other ranks.
        """
        return len(next(iter(batch.values())))

    def state_dict(self) -> dict[str, Any]:
        """State that a resumed run needs, as JSON values. Empty for a stateless loss."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`. It is empty when the run was saved without this loss."""

    def rollout(self, shared: SharedLossData, steps: int) -> None:
        """Run the rollout part, if the loss applies to any of the `steps` gradient steps that follow in this epoch."""
        if self.schedule.applies_in_epoch(shared.state, steps):
            self.run_rollout(shared)

    def train(self, shared: SharedLossData) -> Tensor | None:
        """Run the train part, if the loss applies now."""
        return self.run_train(shared) if self.schedule.applies_now(shared.state) else None

    def report(self, shared: SharedLossData, name: str, value: Tensor | float) -> None:
        """Report a number along with the loss, as `train/<loss>/<name>`."""
        shared.report(f"{self.name}/{name}", value)

    def of_batch(self, batch: Mapping[str, Tensor], name: str) -> Tensor:
        """A field of a batch. A missing field is an error that names this loss."""
        try:
            return batch[name]
        except KeyError:
            raise ExperienceError(
                f"loss {self.name!r} needs {name!r}, which the data does not have; it has {', '.join(batch)}"
            ) from None


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values where the mask is true; 0 if it is true nowhere."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


class ActionsForward(NamedTuple):
    """The policy's outputs for each row of a control minibatch."""

    logprobs: Tensor
    """Of the actions that were taken."""
    entropy: Tensor
    values: Tensor


def actions_forward(shared: SharedLossData) -> ActionsForward:
    """The policy's outputs for the batch's observations and actions, computed once and then shared."""
    forward: ActionsForward | None = shared.get("actions_forward")
    if forward is None:
        evaluated = control_policy(shared.policy).evaluate_actions(shared.batch["obs"], shared.batch["actions"])
        forward = shared["actions_forward"] = ActionsForward(*evaluated)
    return forward


def experience_forward(shared: SharedLossData) -> ActionsForward:
    """As `actions_forward`, for the whole experience in its grid. For the rollout phase."""
    forward: ActionsForward | None = shared.get("experience_forward")
    if forward is None:
        experience = shared.experience
        assert experience is not None
        rows = experience.flat()
        evaluated = control_policy(shared.policy).evaluate_actions(rows["obs"], rows["actions"])
        forward = shared["experience_forward"] = ActionsForward(*(own.reshape(experience.grid) for own in evaluated))
    return forward


def tokens_forward(shared: SharedLossData, temperature: Tensor | None = None) -> Tensor:
    """The log-probabilities of the batch's trained tokens, (rows, length - 1), computed once and then shared.

    The first token has none. Tokens outside of the loss mask may have any finite value.

    :param temperature: divides each row's logits; None for a temperature of 1.
    """
    name = "tokens_forward" if temperature is None else "sampling_forward"
    logprobs: Tensor | None = shared.get(name)
    if logprobs is None:
        policy, batch = text_policy(shared.policy), shared.batch
        logprobs = shared[name] = policy.token_logprobs(
            batch["tokens"], batch["valid"], temperature, trained_tokens(batch)
        )
    return logprobs


def trained_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """The loss mask without the first token, which has no log-probability."""
    return batch["loss_mask"][:, 1:]
