"""Supervised training: epochs over a dataset, with validations in between and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hookline.session import Session
from hookline.training.config import SupervisedConfig
from hookline.training.examples import Batches
from hookline.training.experience import union_of_specs
from hookline.training.learner import Learner
from hookline.training.validation import validate

__all__ = ["SupervisedLoop"]


class SupervisedLoop:
    """Takes one gradient step for each batch of each epoch.

    :param order: the generator that shuffles; all ranks have the same one.
    """

    def __init__(
        self,
        config: SupervisedConfig,
        learner: Learner,
        dataset: Any,
        validation_dataset: Any | None,
        order: np.random.Generator,
    ) -> None:
        spec, _ = union_of_specs(learner.losses)
        self._config = config
        self._learner = learner
        self._order = order
        self._batches = Batches(dataset, config.batch_size, learner.ranks, spec)
        self._validation = (
            None
            if validation_dataset is None
            else Batches(validation_dataset, config.batch_size, learner.ranks, spec, name="validation dataset")
        )

    @property
    def steps_per_epoch(self) -> int:
        return len(self._batches)

    def epochs(self, session: Session) -> Iterator[int]:
        """Train, and yield each epoch when its work is done, before its end is announced."""
        state = session.state
        if self._config.validate_at_start and state.step == 0:
            self._validate(session, is_last_step=False)
        for epoch in session.epochs(until=lambda: self._learner.ranks.any(session.is_told_to_stop())):
            session.begin_train_phase()
            for batch in self._batches.go_through(self._order if self._config.shuffle else None):
                session.begin_step()
                session.end_step(self._learner.step(batch, state))
                self._validate_if_due(session)
            session.end_train_phase()
            yield epoch

    def _validate_if_due(self, session: Session) -> None:
        state, every = session.state, self._config.validate_every
        is_last_step = state.step == state.total_steps
        if is_last_step or (every is not None and state.step % every == 0):
            self._validate(session, is_last_step=is_last_step)

    def _validate(self, session: Session, *, is_last_step: bool) -> None:
        if self._validation is not None:
            validate(session, self._validation, self._learner, is_last_step=is_last_step)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what comes next is decided by the generator that shuffles."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state

    def stop(self) -> None:
        """Nothing is left open."""
