"""Reinforcement learning: each epoch takes rollouts, trains on them, and publishes the new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hookline.plugin_manager.manager import PluginManager
from hookline.session import Session
from hookline.training.config import RolloutConfig
from hookline.training.errors import TrainerConfigError
from hookline.training.experience import Experience, join_rollouts, mean_stats
from hookline.training.given_policy import worker_specification
from hookline.training.learner import Learner
from hookline.training.losses.loss import SharedLossData
from hookline.training.ranks import Ranks
from hookline.training.warm_start import WarmStartPhase
from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker
    from hookline.rollout.sources import RolloutSource

__all__ = ["RolloutLoop", "build_worker", "check_divisible", "worker_options"]


class RolloutLoop:
    """Epochs of a rollout phase and a train phase.

    :param worker: has the curriculum, and announces rollouts. Each rank has its own, and its own source.
    :param source: where the rollouts come from.
    :param order: the rng that shuffles the experience.
    :param warm_start: supervised epochs before the first rollout.
    """

    def __init__(
        self,
        config: RolloutConfig,
        learner: Learner,
        worker: RolloutWorker,
        source: RolloutSource,
        order: np.random.Generator,
        warm_start: WarmStartPhase | None = None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._worker = worker
        self._source = source
        self._order = order
        self._warm_start = warm_start
        self._version = 0
        """The version of the weights. It counts how often they were published with new values."""
        self.has_published = False
        """Whether the source has the learner's current weights. Not between the gradient steps of an epoch."""
        self.experience = Experience(learner.losses)
        for loss in learner.losses:
            loss.attach_replay_buffer(self.experience)

    @property
    def steps_per_epoch(self) -> int:
        return self._config.update_epochs * self._config.minibatches

    def epochs(self, session: Session) -> Iterator[int]:
        """Train. Yields each epoch after its work and before `on_epoch_end`."""
        state = session.state
        state.experience = self.experience
        self._publish()
        # One rank is enough to stop the run: a plugin may request it on rank 0 only.
        for epoch in session.epochs(until=lambda: self._learner.ranks.any(self._is_over(session))):
            if self._warm_start is not None and not self._warm_start.is_over:
                self.has_published = False
                self._warm_start.run_epoch(session)
                self._publish_new()
                self._warm_start.judge()
            else:
                self._run_epoch(session)
                self._publish_new()
            yield epoch

    def _run_epoch(self, session: Session) -> None:
        self._take_rollouts(session)
        self.has_published = False
        session.begin_train_phase()
        for _ in range(self._config.update_epochs):
            self._train_on_experience(session)
        session.end_train_phase()

    def _is_over(self, session: Session) -> bool:
        return self._worker.is_complete or session.should_stop()

    def _take_rollouts(self, session: Session) -> None:
        """The rollout phase: fill the experience, and compute the fields that losses add to it."""
        rollouts = self._source.next(self._config.rollouts_per_epoch)
        arrays, grid = join_rollouts(rollouts)
        # For stale rows, losses compute with the policy, and with shards of it only all ranks together can.
        is_stale = self._learner.ranks.any(any(rollout.weights_version != self._version for rollout in rollouts))
        self.experience.fill(self._learner.to_device(arrays), grid, is_stale=is_stale)
        state = session.state
        state.rollout_stats = {**mean_stats(rollouts), **self._source.numbers()}
        state.agent_step += int(state.rollout_stats.get("rollout/steps", 0)) * state.world_size
        shared = SharedLossData(state, self._learner.policy, experience=self.experience)
        with torch.no_grad():
            for loss in self._learner.losses:
                self._learner.run(partial(loss.rollout, shared, self.steps_per_epoch))

    def _train_on_experience(self, session: Session) -> None:
        rows, minibatches = self.experience.rows, self._config.minibatches
        check_divisible(rows, minibatches)
        order = torch.from_numpy(self._order.permutation(rows)).to(self._learner.device)
        needed = self._rows_to_learn_from(session)
        if needed is not None:
            order = order[needed[order]]
        for batch in self.experience.minibatches(minibatches, order):
            session.begin_step()
            session.end_step(self._learner.step(batch, session.state, self.experience))

    def _rows_to_learn_from(self, session: Session) -> Tensor | None:
        """One flag per row: whether any loss needs it. None for all rows."""
        union: Tensor | None = None
        for loss in self._learner.losses:
            if loss.schedule.applies_in_epoch(session.state, self.steps_per_epoch):
                needed = loss.rows_to_learn_from(self.experience)
                if needed is None:
                    return None
                union = needed if union is None else union | needed
        return union

    def _publish(self) -> None:
        self._source.publish(self._learner.weights(), self._version)
        self.has_published = True

    def _publish_new(self) -> None:
        self._version += 1
        self._publish()

    def state_dict(self) -> dict[str, Any]:
        """The state that the next epoch depends on, besides weights and rngs. The experience is not part of it."""
        warm_start = None if self._warm_start is None else self._warm_start.state_dict()
        return {"version": self._version, "source": self._source.state_dict(), "warm_start": warm_start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._version = state["version"]
        self._source.load_state_dict(state["source"])
        if self._warm_start is not None:
            self._warm_start.load_state_dict(state["warm_start"])

    def stop(self) -> None:
        self._source.close()
        if self._worker.rewards is not None:
            self._worker.rewards.close()


def check_divisible(rows: int, minibatches: int) -> None:
    """Raise when the rows cannot be divided into minibatches of equal size."""
    if rows % minibatches:
        divisors = [n for n in range(1, rows + 1) if rows % n == 0]
        better = min(divisors, key=lambda n: abs(n - minibatches))
        raise TrainerConfigError(
            f"the {rows} rows of an epoch's experience cannot be divided into rollout.minibatches = {minibatches}: "
            f"set it to {better}, or change the numbers of environments, steps or samples"
        )


def build_worker(
    config: RolloutConfig,
    curriculum: Curriculum | CurriculumConfig | None,
    policy: Any,
    seed: int,
    ranks: Ranks,
    plugins: PluginManager,
    state: TrainerState,
) -> RolloutWorker:
    """A rollout worker for the curriculum's lessons; for CartPole without a curriculum."""
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker, RolloutWorkerConfig

    lessons = curriculum.config if isinstance(curriculum, Curriculum) else curriculum or CurriculumConfig()
    worker = RolloutWorker(
        RolloutWorkerConfig(
            curriculum_config=lessons,
            policy=worker_specification(policy),
            seed=seed,
            worker_index=ranks.rank,
            **worker_options(config),
        ),
        plugins,
        run_state=state,
    )
    if isinstance(curriculum, Curriculum):
        worker.curriculum = curriculum  # the caller's object, so that the caller can read its progress
    return worker


def worker_options(config: RolloutConfig) -> dict[str, Any]:
    """The fields of a `RolloutWorkerConfig` that a trainer's config sets."""
    from hookline.rollout import SamplingConfig

    return {
        "num_environments": config.num_environments,
        "steps_per_rollout": config.steps_per_rollout,
        "sampling": SamplingConfig(config.samples_per_prompt, config.temperature, config.top_k, config.top_p),
        "engine": config.engine,
        "precision": config.precision,
    }
