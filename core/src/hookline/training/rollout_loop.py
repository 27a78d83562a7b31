"""Reinforcement learning: each epoch plays, then learns from what it played, then hands its weights back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hookline.session import Session
from hookline.training.config import RolloutConfig
from hookline.training.errors import TrainerConfigError
from hookline.training.experience import Experience, join_rollouts, mean_stats
from hookline.training.learner import Learner
from hookline.training.losses.loss import SharedLossData
from hookline.training.warm_start import WarmStartPhase

if TYPE_CHECKING:
    from hookline.rewards import IntegratedRewardSystem
    from hookline.rollout import RolloutWorker
    from hookline_hookspecs import Rollout

__all__ = ["RolloutLoop"]


class RolloutLoop:
    """Epochs of rollout phase and train phase.

    :param worker: makes the rollouts; on each rank its own.
    :param order: the generator that shuffles the experience.
    :param rewards: rewards and verifies what was played; without it the lessons' own rewards stand.
    :param warm_start: epochs of supervised learning that come first.
    """

    def __init__(
        self,
        config: RolloutConfig,
        learner: Learner,
        worker: RolloutWorker,
        order: np.random.Generator,
        rewards: IntegratedRewardSystem | None = None,
        warm_start: WarmStartPhase | None = None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._worker = worker
        self._order = order
        self.rewards = rewards
        self._warm_start = warm_start
        self.experience = Experience(learner.losses)
        for loss in learner.losses:
            loss.attach_replay_buffer(self.experience)

    @property
    def steps_per_epoch(self) -> int:
        return self._config.update_epochs * self._config.minibatches

    def epochs(self, session: Session) -> Iterator[int]:
        """Train, and yield each epoch when its work is done, before its end is announced."""
        state = session.state
        state.experience = self.experience
        self._hand_over_weights(session)
        # On one rank is enough: a plugin may have said so on rank 0 alone.
        for epoch in session.epochs(until=lambda: self._learner.ranks.any(self._is_over(session))):
            if self._warm_start is not None and not self._warm_start.is_over:
                self._warm_start.run_epoch(session)
                self._hand_over_weights(session)
                self._warm_start.judge()
            else:
                self._play_and_learn(session)
                self._hand_over_weights(session)
            yield epoch

    def _play_and_learn(self, session: Session) -> None:
        self._play(session)
        session.begin_train_phase()
        for _ in range(self._config.update_epochs):
            self._go_through_experience(session)
        session.end_train_phase()

    def _is_over(self, session: Session) -> bool:
        return self._worker.is_complete or session.should_stop()

    def _play(self, session: Session) -> None:
        """The rollout phase: rollouts, and what losses make of them."""
        rollouts = [self._rollout()]
        while len(rollouts) < self._config.rollouts_per_epoch and not self._worker.is_complete:
            rollouts.append(self._rollout())
        arrays, grid = join_rollouts(rollouts)
        self.experience.fill(self._learner.to_device(arrays), grid)
        state = session.state
        state.rollout_stats = mean_stats(rollouts)
        state.agent_step += int(state.rollout_stats.get("rollout/steps", 0)) * state.world_size
        shared = SharedLossData(state, self._learner.policy, experience=self.experience)
        with torch.no_grad():
            for loss in self._learner.losses:
                self._learner.run(partial(loss.rollout, shared, self.steps_per_epoch))

    def _rollout(self) -> Rollout:
        rollout = self._worker.rollout()
        if self.rewards is not None:
            accepted = self.rewards.process_rollout(rollout)
            rollout.stats["acceptance_rate"] = float(accepted.mean())
        return rollout

    def _go_through_experience(self, session: Session) -> None:
        rows, minibatches = self.experience.rows, self._config.minibatches
        check_divisible(rows, minibatches)
        order = torch.from_numpy(self._order.permutation(rows)).to(self._learner.device)
        wanted = self._rows_to_learn_from(session)
        if wanted is not None:
            order = order[wanted[order]]
        for batch in self.experience.minibatches(minibatches, order):
            session.begin_step()
            session.end_step(self._learner.step(batch, session.state, self.experience))

    def _rows_to_learn_from(self, session: Session) -> Tensor | None:
        """Those that any loss wants; None for all."""
        union: Tensor | None = None
        for loss in self._learner.losses:
            if loss.schedule.applies_in_epoch(session.state, self.steps_per_epoch):
                wanted = loss.rows_to_learn_from(self.experience)
                if wanted is None:
                    return None
                union = wanted if union is None else union | wanted
        return union

    def _hand_over_weights(self, session: Session) -> None:
        self._worker.update_weights(self._learner.weights(), version=session.state.step)

    def state_dict(self) -> dict[str, Any]:
        """What decides the next epoch besides weights and generators. An epoch's experience is not carried over."""
        parts = {"worker": self._worker, "rewards": self.rewards, "warm_start": self._warm_start}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._worker.load_state_dict(state["worker"])
        if self.rewards is not None:
            self.rewards.load_state_dict(state["rewards"])
        if self._warm_start is not None:
            self._warm_start.load_state_dict(state["warm_start"])

    def stop(self) -> None:
        self._worker.stop()
        if self.rewards is not None:
            self.rewards.close()


def check_divisible(rows: int, minibatches: int) -> None:
    """Raise when rows cannot be divided into minibatches of one size."""
    if rows % minibatches:
        nearest = [n for n in range(1, rows + 1) if rows % n == 0]
        better = min(nearest, key=lambda n: abs(n - minibatches))
        raise TrainerConfigError(
            f"the {rows} rows of an epoch's experience cannot be divided into rollout.minibatches = {minibatches}: "
            f"{better} would do, or other numbers of environments, steps or samples"
        )
