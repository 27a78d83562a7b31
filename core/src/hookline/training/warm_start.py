"""Before reinforcement learning: epochs of supervised learning, until the policy solves enough for rewards to tell.

A policy that never finds an answer is never rewarded, and learns nothing. So it is shown answers first, and only for as
long as that takes: the phase ends on how many fresh problems the policy solves, not after so many steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hookline.plugins.manager import PluginManager
from hookline.session import Session
from hookline.training.errors import TrainingError
from hookline.training.examples import Batches
from hookline.training.experience import union_of_specs
from hookline.training.learner import Learner
from hookline.training.losses.registry import build_losses

if TYPE_CHECKING:
    from hookline.rollout import RolloutWorker

__all__ = ["WarmStart", "WarmStartPhase"]

EVALUATION: Final = "warm_start"


@dataclass
class WarmStart:
    """What a policy is shown before it plays, and when that is enough."""

    dataset: Sequence[Mapping[str, Any]]
    """Examples as the trainer takes them."""
    until: Mapping[str, float]
    """The share of held-out problems solved at which the phase ends, by lesson; all of these lessons must reach it."""
    n_examples: int = 256
    """Problems of each of these lessons that are tried after each epoch."""
    steps_per_epoch: int = 16
    """Gradient steps between two tries; each epoch takes other examples by chance."""
    max_epochs: int = 50
    """The run fails when so many epochs were not enough."""
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
        self._epochs = 0
        self.is_over = False

    def run_epoch(self, session: Session) -> None:
        """Go through some of the examples."""
        session.begin_train_phase()
        for batch in self._batches.go_through(self._order, self._config.steps_per_epoch):
            session.begin_step()
            session.end_step(self._learner.step(batch, session.state))
        session.end_train_phase()
        self._epochs += 1

    def judge(self) -> None:
        """See whether it is enough, with the worker's weights, which must be the latest."""
        solved = self._shares_solved()
        if all(solved[lesson] >= share for lesson, share in self._config.until.items()):
            self.is_over = True
        elif self._epochs >= self._config.max_epochs:
            missed = ", ".join(
                f"{solved[lesson]:.0%} of {lesson} (of {u:.0%})" for lesson, u in self._config.until.items()
            )
            raise TrainingError(
                f"after {self._epochs} epochs of warm start the policy solves {missed}: "
                "give it more examples or epochs, or ask for less"
            )

    def _shares_solved(self) -> dict[str, float]:
        """The share of each lesson's problems, as the mean over ranks: the same on all of them."""
        lessons, ranks = list(self._config.until), self._learner.ranks
        scores = self._worker.evaluate(lessons, n_examples=self._config.n_examples, eval_type=EVALUATION)
        own = torch.tensor([scores[f"inference.{EVALUATION}/{lesson}/success_rate"] for lesson in lessons])
        return dict(zip(lessons, (ranks.sum(own) / ranks.world_size).tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self._epochs, "is_over": self.is_over}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epochs, self.is_over = state["epochs"], state["is_over"]
