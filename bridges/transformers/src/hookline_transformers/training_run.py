"""`TrainingRun`: one call of `trainer.train()`, as the moments of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hookline.session import Session
from hookline_hookspecs import HookContext, Rollout
from hookline_transformers.ranks import Ranks
from hookline_transformers.shards import Whole

__all__ = ["TrainingRun"]

Numbers = Mapping[str, float]


class TrainingRun:
    """Knows which moments of a session are under way, and begins and ends them in their order.

    An epoch is the trainer's. With `generation_every` it is one generation and the steps that learn from it.

    :param after_session: what is to be closed when the session is over.
    :param shards: what must be gathered for a checkpoint.
    :param first_epoch: the trainer's own epoch that training begins with.
    :param generation_every: forward passes from one generation to the next, as GRPO has them; None for no generations.
    :param kept: what `kept` was when the checkpoint was saved that training goes on from.
    """

    def __init__(
        self,
        session: Session,
        ranks: Ranks,
        after_session: ExitStack,
        *,
        shards: Sequence[Whole] = (),
        first_epoch: int = 0,
        generation_every: int | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        self.session = session
        self.ranks = ranks
        self.after_session = after_session
        self._shards = shards
        self.kept: dict[str, Any] = {"generations": 0, **(kept or {})}
        """What a checkpoint must hold besides plugin states: generations so far, and the reward function's bounds."""
        self._generation_every = generation_every
        self._passes = 0
        self._is_in_step = False
        self._has_open_epoch = self._has_open_phase = self._has_open_step = False
        self._has_open_rollout = self._has_open_validation = False
        self._awaiting_numbers: Callable[[Numbers], None] | None = None
        self.epoch = session.start_epoch
        if generation_every is None:
            # Saved after an epoch's last step, and before the trainer told of its end: there is nothing left of it.
            while self.epoch < first_epoch:
                self.begin_epoch()
                self._end_epoch({})
        else:
            session.plugins.set_clocks(rollout=self.kept["generations"] or -1)

    @property
    def has_open_epoch(self) -> bool:
        return self._has_open_epoch

    # -- epochs ---------------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        self.settle()
        if self._generation_every is None:
            self._begin_epoch()
            self._begin_phase()

    def end_epoch(self, *, numbers_follow: bool) -> None:
        self.settle()
        if self._generation_every is None:
            self._then(self._end_epoch, numbers_follow)

    def _begin_epoch(self) -> None:
        self.session.begin_epoch(self.epoch)
        self._has_open_epoch = True

    def _begin_phase(self) -> None:
        self.session.begin_train_phase()
        self._has_open_phase = True

    def _gather(self) -> None:
        for own in self._shards:
            own.gather()

    def _end_epoch(self, late: Numbers) -> None:
        if late:
            self.session.log(late)
        if self._has_open_phase:
            self.session.end_train_phase()
        self._gather()
        self.session.end_epoch()
        for own in self._shards:
            own.let_go()
        self._has_open_epoch = self._has_open_phase = False
        self.epoch += 1

    # -- steps ----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        self.settle()
        # One that was announced because it was due, and that another callback called off.
        self._has_open_validation = False
        self._is_in_step = True
        if self._generation_every is None or self._has_open_epoch:
            self._open_step()
        else:
            self._begin_epoch()
            self._begin_rollout()  # the step begins when there is something to learn from

    def _open_step(self) -> None:
        if not self._has_open_step:
            if not self._has_open_phase:
                self._begin_phase()
            self.session.begin_step()
            self._has_open_step = True

    def end_pass(self) -> None:
        """A forward and a backward pass are done."""
        self._passes += 1
        self._open_step()

    def end_minibatch(self) -> None:
        """The gradient is there, and the optimizer has not used it yet."""
        self._open_step()
        self.session.end_minibatch()

    def end_step(self, *, numbers_follow: bool) -> None:
        self._passes += 1
        self._is_in_step = self._has_open_rollout = False
        self._then(self._end_step, numbers_follow)

    def _end_step(self, numbers: Numbers) -> None:
        self.session.end_step(numbers)
        self._has_open_step = False
        # Not whether a multiple was crossed, as a schedule asks: the epoch ends with a step that ends a generation. One
        # that ends within a step waits for the next that does not.
        if self._generation_every is not None and self._passes % self._generation_every == 0:
            self._end_epoch({})

    # -- numbers that come after what they belong to ---------------------------------------------------------------

    def _then(self, end: Callable[[Numbers], None], numbers_follow: bool) -> None:
        """End a step or an epoch: at once, or with the numbers that the trainer logs next."""
        if numbers_follow:
            self._awaiting_numbers = end
        else:
            end({})

    @property
    def awaits_numbers(self) -> bool:
        return self._awaiting_numbers is not None

    def settle(self, numbers: Numbers | None = None) -> None:
        """End what waits for its numbers, with these or without."""
        end, self._awaiting_numbers = self._awaiting_numbers, None
        if end is not None:
            end(numbers or {})

    def log(self, numbers: Numbers, step: int) -> None:
        if self.awaits_numbers:
            self.settle(numbers)
        else:
            self.session.log(numbers, step=step)

    # -- validation -----------------------------------------------------------------------------------------------

    def begin_validation(self, *, is_last_step: bool) -> None:
        self.settle()
        if not self._has_open_validation:
            self.session.begin_validation(is_last_step=is_last_step)
            self._has_open_validation = True

    def end_validation(self, loss: float, metrics: Numbers) -> None:
        self.session.end_validation(loss, metrics=metrics)
        self._has_open_validation = False

    # -- generations ----------------------------------------------------------------------------------------------

    @property
    def is_generating(self) -> bool:
        """Whether completions that come now are to be learned from: between steps they are those of a validation."""
        return self._is_in_step

    def _context(self, stats: Numbers | None = None) -> HookContext:
        return HookContext(step=self.kept["generations"], metadata=dict(stats or {}))

    def _begin_rollout(self) -> None:
        self.session.emit.on_rollout_start(context=self._context())
        self._has_open_rollout = True

    def end_rollout(self, rollout: Rollout) -> None:
        """Completions have been generated."""
        if not self._has_open_rollout:  # a second generation within one step
            self._begin_rollout()
        self.kept["generations"] += 1
        rollout.weights_version = self.session.state.step
        self.session.emit.on_rollout_end(context=self._context(rollout.stats), rollout=rollout)
        self._has_open_rollout = False

    def end_rewards(self, stats: Numbers) -> None:
        """The completions have their rewards, and are learned from."""
        self.session.state.rollout_stats = {f"rollout/{name}": value for name, value in stats.items()}
        self._open_step()

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Training is over, maybe in the middle of a generation's steps."""
        self.settle()
        if self._has_open_epoch:
            self._end_epoch({})
        self._gather()

    def should_stop(self) -> bool:
        """Whether a plugin, on any rank, wants training to end. All ranks must ask."""
        return self.ranks.any(self.session.should_stop())
