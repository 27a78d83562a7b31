"""`Trainer`: puts policy, losses, optimizer and data together, and runs the loop that suits them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import hookline
from hookline.hooks.trainer_hooks import AddedHooks
from hookline.plugin_manager.manager import PluginManager
from hookline.rollout import TrackedNumbers
from hookline.session import Session
from hookline.training.config import TrainerConfig, as_plain_data, check_config
from hookline.training.errors import RankError, TrainingError
from hookline.training.learner.learner import Learner, choose_device
from hookline.training.long_lived import long_lived_left_out
from hookline.training.losses.registry import NAME as LOSSES
from hookline.training.losses.registry import LossLifecycle, build_losses
from hookline.training.policy_evaluator import NAME as EVALUATOR
from hookline.training.policy_evaluator import PolicyEvaluator
from hookline.training.ranks import join_ranks
from hookline.training.resume_point import NAME, ResumePoint, restore_generators, seed_generators, take_generators
from hookline.training.rollout_loop import RolloutLoop, check_divisible
from hookline.training.supervised_loop import SupervisedLoop
from hookline.training.warm_start import WarmStart, WarmStartPhase
from hookline.training.worker import as_module, build_worker, have_worker_play
from hookline_hookspecs import TrainerState
from hookline_hookspecs.redaction import redact, remember_secrets

if TYPE_CHECKING:
    from hookline.rewards import IntegratedRewardConfig, IntegratedRewardSystem
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker

__all__ = ["Trainer"]

logger = logging.getLogger("hookline.training")


class Trainer:
    """Trains a policy, by rollouts of a curriculum's lessons or, when there is a dataset, on its examples.

    :param curriculum: the lessons to play; CartPole when there is none, and no dataset.
    :param policy: a torch module, or a specification such as `MLPPolicy` or `TransformerPolicy`; what it must offer is
        in `hookline.policies.protocol`. None for one that suits the first lesson.
    :param dataset: examples by position, each a mapping of names to numbers; see `hookline.training.supervised_loop`.
    :param validation_dataset: examples that are held out.
    :param plugins: where events go. One of its own discovers nothing: `hookline.train` and `hookline.launcher` use
        what is installed.
    :param worker: a rollout worker of your own; `curriculum` and the sizes in `config.rollout` are its own then.
    :param rewards: how the reward processor rewards and verifies rollouts of text; None for the lessons' own rewards.
    :param warm_start: examples that the policy is shown before it plays.
    """

    def __init__(
        self,
        config: TrainerConfig | None = None,
        curriculum: Curriculum | CurriculumConfig | None = None,
        policy: Any = None,
        *,
        dataset: Any | None = None,
        validation_dataset: Any | None = None,
        plugins: PluginManager | None = None,
        worker: RolloutWorker | None = None,
        rewards: IntegratedRewardConfig | None = None,
        warm_start: WarmStart | None = None,
    ) -> None:
        self.config = config = config or TrainerConfig()
        check_config(config)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.ranks = join_ranks(config.rank_timeout_seconds)
        self.plugins = plugins or (worker.plugins if worker is not None else PluginManager(rank=self.ranks.rank))
        if self.plugins.rank != self.ranks.rank:
            raise TrainingError(
                f"this is rank {self.ranks.rank}, but its plugins are those of rank {self.plugins.rank}: "
                "make their manager with rank=int(os.environ['RANK'])"
            )
        remember_secrets(config)
        self.state = TrainerState(
            run_id="" if config.run_dir is None else config.run_dir.name,
            run_dir=config.run_dir,
            config={"hookline": hookline.__version__, "task": config.task, "trainer": redact(as_plain_data(config))},
            resume=config.resume,
            total_epochs=config.epochs,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        seed_generators(config.seed)
        self._order = np.random.default_rng(config.seed)
        self.worker = worker
        self.loop = self._build_loop(curriculum, policy, dataset, validation_dataset, rewards, warm_start)
        self._hooks = AddedHooks(self.plugins, self.state, self.worker)
        # A warm start ends when the policy solves enough, after an unknown number of steps.
        self.state.total_steps = None if warm_start is not None else config.epochs * self.loop.steps_per_epoch
        self._restored_from: str | None = None
        self._progress_of_ranks: list[dict[str, Any]] | None = None

    # -- construction ---------------------------------------------------------------------------------------------

    def _build_loop(
        self,
        curriculum: Any,
        policy: Any,
        dataset: Any | None,
        validation_dataset: Any | None,
        rewards: IntegratedRewardConfig | None,
        warm_start: WarmStart | None,
    ) -> SupervisedLoop | RolloutLoop:
        config = self.config
        if dataset is not None:
            learner = self._build_learner(policy, {"sft": {}})
            return SupervisedLoop(config.supervised, learner, dataset, validation_dataset, self._order)
        if self.worker is None:
            self.worker = build_worker(
                config.rollout, curriculum, policy, config.seed, self.ranks, self.plugins, self.state
            )
        self.worker.run_state = self.state
        module = as_module(self.worker.policy if policy is None else policy, config.seed)
        have_worker_play(self.worker, module, choose_device(config.learner.device))
        self._check_rows()
        default_losses = ("grpo",) if self.worker.plays_text else ("ppo_actor", "ppo_critic")
        learner = self._build_learner(module, {name: {} for name in default_losses})
        return RolloutLoop(
            config.rollout,
            learner,
            self.worker,
            self._order,
            self._build_rewards(rewards),
            None if warm_start is None else WarmStartPhase(warm_start, learner, self.worker, self._order, self.plugins),
        )

    def _build_rewards(self, config: IntegratedRewardConfig | None) -> IntegratedRewardSystem | None:
        if config is None:
            return None
        assert self.worker is not None
        if not self.worker.plays_text:
            raise TrainingError("`rewards` are of text, but these lessons are environments, which have their own")
        from hookline.rewards import create_integrated_reward_system

        if config.enable_verification and not self.plugins.hook.verify_episodes.get_hookimpls():
            logger.info("episodes are not verified: no verifier is active. pip install hookline-verifiers brings some")
            config = replace(config, enable_verification=False)
        return create_integrated_reward_system(config, self.plugins)

    def _check_rows(self) -> None:
        assert self.worker is not None
        own = self.worker.config
        rows = own.sampling.samples_per_prompt if self.worker.plays_text else own.steps_per_rollout
        per_rollout = own.num_environments * rows
        check_divisible(per_rollout * self.config.rollout.rollouts_per_epoch, self.config.rollout.minibatches)

    def _build_learner(self, policy: Any, default_losses: Mapping[str, Mapping[str, Any]]) -> Learner:
        if policy is None:
            raise TrainingError("a dataset needs a policy: give the trainer a torch module, or a TransformerPolicy")
        module = as_module(policy, self.config.seed)
        losses = build_losses(default_losses if self.config.losses is None else self.config.losses, self.plugins)
        self.learner = learner = Learner(module, losses, self.config.optimizer, self.config.learner, self.ranks)
        self.policy = self.state.policy = module
        self.optimizer = self.state.optimizer = learner.optimizer
        self._losses = losses
        return learner

    # -- use ------------------------------------------------------------------------------------------------------

    def add_hook(self, hook: Any) -> None:
        """Have a plugin, a `hookline.hooks.Hook` or a `TrainerHook` take part, from the next event on."""
        self._hooks.add(hook)

    def remove_hook(self, hook: Any) -> bool:
        """Call a hook that was added no more, from the next event on; says whether it was there."""
        return self._hooks.remove(hook)

    def train(self) -> TrainerState:
        """Run to the end, and return the state there. A run that fails raises what ended it."""
        self.ranks.join()
        own: dict[str, object] = {
            NAME: ResumePoint(self),
            EVALUATOR: PolicyEvaluator(self),
            LOSSES: LossLifecycle(self._losses, self.state),
        }
        if self.worker is not None:
            own["rollout-worker"] = TrackedNumbers(self.worker.tracker)
        for name, plugin in own.items():
            self.plugins.register(plugin, name)
        try:
            with (
                long_lived_left_out() as leave_out_long_lived,
                Session(
                    self.plugins, self.state, rollouts=self._rollouts_made, restored_from=self._restored_from
                ) as session,
            ):
                self._check_start(session)
                # What was restored on one rank, or made with another seed there, is rank 0's everywhere.
                self.learner.agree()
                self._share_progress()
                try:
                    for _ in self.loop.epochs(session):
                        self._share_progress()
                        leave_out_long_lived()  # after the first epoch, when all is imported and compiled
                finally:
                    self.loop.stop()
        finally:
            self._restored_from = None
            for name in own:
                self.plugins.unregister(name=name)
            self.ranks.leave()
        return self.state

    def _check_start(self, session: Session) -> None:
        """Each rank has restored the run by itself: that all found the same must not be taken for granted."""
        restored = session.restored
        start = {
            "epoch": session.start_epoch,
            "step": self.state.step,
            "goes on from": getattr(restored, "fingerprint", restored) or "nothing",
        }
        starts = self.ranks.gather(start)
        if any(other != starts[0] for other in starts):
            shown = "; ".join(
                f"rank {rank}: {', '.join(f'{name} {value}' for name, value in own.items())}"
                for rank, own in enumerate(starts)
            )
            raise RankError(
                f"the ranks do not start at the same point of the run ({shown}): they see different checkpoints. "
                f"Give all of them the same folder, on a file system that they share; here it is {self.state.run_dir}"
            )

    def _share_progress(self) -> None:
        """Gather what all ranks hold before the epoch ends: checkpoints are saved on rank 0 alone, which cannot ask."""
        if self.ranks.world_size > 1:
            self.learner.gather()
            self._progress_of_ranks = self.ranks.gather(self._own_progress())

    def _rollouts_made(self) -> int:
        return -1 if self.worker is None else self.worker.step

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on, between two epochs: arrays, and values that JSON can hold.

        Where ranks hold parts of the policy (`fsdp2`), rank 0's is whole, and is what all of them load.
        """
        state = self.state
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": {"epoch": state.epoch, "step": state.step, "agent_step": state.agent_step},
            "progress": self.progress(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Have the next `train()` go on from a state, with the epoch after the one that was last complete."""
        self.load_progress(saved["progress"])  # first: it says when this is not the same run
        self.policy.load_state_dict(saved["policy"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for name, value in saved["counters"].items():
            setattr(self.state, name, value)
        self._restored_from = "Trainer.load_state_dict"

    def progress(self) -> dict[str, Any]:
        """Generators, data order, and what the loop and the losses keep, by rank; all that JSON can hold."""
        ranks = self._progress_of_ranks or [self._own_progress()]
        return {"ranks": ranks}

    def _own_progress(self) -> dict[str, Any]:
        return {
            "generators": take_generators(),
            "order": self._order.bit_generator.state,
            "loop": self.loop.state_dict(),
            "losses": {loss.name: loss.state_dict() for loss in self._losses},
        }

    def load_progress(self, progress: Mapping[str, Any]) -> None:
        """Put back what `progress` gave."""
        saved = progress["ranks"]
        if len(saved) != self.ranks.world_size:
            raise TrainingError(
                f"the run was saved with {len(saved)} rank(s) and cannot go on exactly with {self.ranks.world_size}: "
                "start as many, or begin anew from its weights"
            )
        own = saved[self.ranks.rank]
        for loss in self._losses:
            loss.load_state_dict(own["losses"].get(loss.name, {}))
        restore_generators(own["generators"])
        self._order.bit_generator.state = own["order"]
        self.loop.load_state_dict(own["loop"])
