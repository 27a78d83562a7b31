"""Warm start: supervised epochs (SFT) before reinforcement learning.

A policy that solves no problem gets no reward and learns nothing. The warm start trains it on worked examples first. It
ends when the policy solves a given share of training problems, not after a fixed number of steps. Held-out problems are
not used, so they remain valid for the final evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hookline.plugin_manager.manager import PluginManager
from hookline.session import Session
from hookline.training.errors import TrainingError
from hookline.training.experience import union_of_specs
from hookline.training.learner import Learner
from hookline.training.losses.registry import build_losses
from hookline.training.supervised_loop import Batches

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["WarmStart", "WarmStartConfig", "WarmStartPhase"]

EVALUATION: Final = "warm_start"

logger = logging.getLogger("hookline.training")


@dataclass(kw_only=True)
class WarmStartConfig:
    """The condition that ends a warm start, and its gradient steps."""

    until: Mapping[str, float]
    """The share of problems that the policy must solve, by lesson. The phase ends when all lessons reach it."""
    n_examples: int = 256
    """Problems of each lesson that are evaluated after each epoch."""
    steps_per_epoch: int = 16
    """Gradient steps between two evaluations. Each epoch draws its examples at random."""
    patience: int = 50
    """Epochs without progress after which the phase ends early, with a warning. Slow progress is enough to continue."""
    batch_size: int = 128
    """Examples in each gradient step, over all ranks."""
    learning_rate: float = 1e-3


@dataclass
class WarmStart(WarmStartConfig):
    """A warm start and its dataset."""

    dataset: Sequence[Mapping[str, Any]]
    """Examples in the format of the trainer's dataset."""


class WarmStartPhase:
    """Runs a warm start, with the same policy and optimizer as the reinforcement learning after it."""

    def __init__(
        self,
        config: WarmStart,
        learner: Learner,
        worker: RolloutWorker,
        order: np.random.Generator,
        plugins: PluginManager,
    ) -> None:
        for loss in learner.losses:
            if "reference" in loss.state_dict():
                raise TrainingError(
                    f"loss {loss.name!r} penalizes the distance from the initial policy, but a warm start changes "
                    "the policy first: make the warm start a separate run and start this one from its policy, or "
                    "leave out kl"
                )
        losses = build_losses({"sft": {}}, plugins)
        self._config = config
        self._learner = learner.sharing(
            losses, replace(learner.optimizer_config, learning_rate=config.learning_rate, schedule="constant")
        )
        self._worker = worker
        self._order = order
        self._batches = Batches(
            config.dataset,
            config.batch_size,
            learner.ranks,
            union_of_specs(losses)[0],
            name="warm start's dataset",
        )
        self._missing = sum(config.until.values())
        """How far the best epoch so far is from the shares in `until`, summed over lessons."""
        self._epochs_without_progress = 0
        self.is_over = False

    def run_epoch(self, session: Session) -> None:
        """Take `steps_per_epoch` gradient steps on random examples."""
        session.begin_train_phase()
        for batch in self._batches.go_through(self._order, self._config.steps_per_epoch):
            session.begin_step()
            session.end_step(self._learner.step(batch, session.state))
        session.end_train_phase()

    def judge(self) -> None:
        """Evaluate the policy and decide whether the phase is over. The worker must have the latest weights."""
        solved, until, patience = self._shares_solved(), self._config.until, self._config.patience
        missing = sum(max(share - solved[lesson], 0.0) for lesson, share in until.items())
        if missing < self._missing:
            self._missing, self._epochs_without_progress = missing, 0
        else:
            self._epochs_without_progress += 1
        self.is_over = missing == 0 or self._epochs_without_progress >= patience
        if self.is_over and missing:
            shares = ", ".join(f"{solved[lesson]:.0%} of {lesson} (of {share:.0%})" for lesson, share in until.items())
            logger.warning(
                "the warm start ends early: the policy solves %s, with no progress in %d epochs. Reinforcement "
                "learning starts now; if it gets no rewards, change the warm start's examples or learning rate",
                shares,
                patience,
            )

    def _shares_solved(self) -> dict[str, float]:
        """The share of each lesson's problems that the policy solves, averaged over ranks."""
        lessons, ranks = list(self._config.until), self._learner.ranks
        scores = self._worker.evaluate(
            lessons, n_examples=self._config.n_examples, eval_type=EVALUATION, held_out=False
        )
        own = torch.tensor([scores[f"{EVALUATION}/{lesson}/success_rate"] for lesson in lessons])
        return dict(zip(lessons, (ranks.sum(own) / ranks.world_size).tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "missing": self._missing,
            "epochs_without_progress": self._epochs_without_progress,
            "is_over": self.is_over,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._missing = state["missing"]
        self._epochs_without_progress = state["epochs_without_progress"]
        self.is_over = state["is_over"]
