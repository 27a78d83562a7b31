"""Before reinforcement learning: epochs of supervised learning, until the policy solves enough for rewards to tell.

A policy that never finds an answer is never rewarded, and learns nothing. So it is shown answers first, and for as long
as that takes: the phase ends on the share of problems that the policy solves, not after so many steps. These are
problems of training: those that are held out have no part in the course of a run, and can be reported at its end.
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

__all__ = ["WarmStart", "WarmStartPhase"]

EVALUATION: Final = "warm_start"

logger = logging.getLogger("hookline.training")


@dataclass
class WarmStart:
    """What a policy is shown before it plays, and when that is enough."""

    dataset: Sequence[Mapping[str, Any]]
    """Examples as the trainer takes them."""
    until: Mapping[str, float]
    """The share of problems solved at which the phase ends, by lesson; all of these lessons must reach it."""
    n_examples: int = 256
    """Problems of each of these lessons that are tried after each epoch."""
    steps_per_epoch: int = 16
    """Gradient steps between two tries; each epoch takes other examples by chance."""
    patience: int = 50
    """Epochs without progress after which the phase ends all the same, with a warning. A slow one goes on."""
    batch_size: int = 128
    """Examples in each gradient step, over all ranks."""
    learning_rate: float = 1e-3


class WarmStartPhase:
    """Carries a warm start out, with the policy and the optimizer of the steps that come after it."""

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
                    f"loss {loss.name!r} keeps the policy near the one that the trainer was given, and a warm start "
                    "leads away from it: make the warm start a run of its own and give its policy to this one, or "
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
        """The sum of shares that the best epoch so far did not solve."""
        self._epochs_without_progress = 0
        self.is_over = False

    def run_epoch(self, session: Session) -> None:
        """Go through some of the examples."""
        session.begin_train_phase()
        for batch in self._batches.go_through(self._order, self._config.steps_per_epoch):
            session.begin_step()
            session.end_step(self._learner.step(batch, session.state))
        session.end_train_phase()

    def judge(self) -> None:
        """See whether it is enough, with the worker's weights, which must be the latest."""
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
                "the warm start ends early: the policy solves %s, no more than %d epochs ago. Reinforcement learning "
                "begins from there; if it is not rewarded, give the warm start other examples or another learning rate",
                shares,
                patience,
            )

    def _shares_solved(self) -> dict[str, float]:
        """The share of each lesson's problems, as the mean over ranks: the same on all of them."""
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
