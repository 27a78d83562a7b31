"""`Trainer`: builds the learner and the training loop from policy, losses, optimizer and data, and runs it."""

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
from hookline.training.errors import RankError, TrainerConfigError, TrainingError
from hookline.training.given_policy import as_module, given_policy, use_module_for_rollouts
from hookline.training.learner.learner import Learner, choose_device
from hookline.training.losses.registry import NAME as LOSSES
from hookline.training.losses.registry import LossLifecycle, build_losses
from hookline.training.memory import gc_freeze, keep_freed_memory
from hookline.training.policy_evaluator import NAME as EVALUATOR
from hookline.training.policy_evaluator import PolicyEvaluator
from hookline.training.ranks import join_ranks
from hookline.training.resume_point import NAME, ResumePoint, restore_generators, seed_generators, take_generators
from hookline.training.rollout_loop import RolloutLoop, build_worker, check_divisible
from hookline.training.supervised_loop import SupervisedLoop
from hookline.training.warm_start import WarmStart, WarmStartPhase
from hookline_hookspecs import TrainerState
from hookline_hookspecs.redaction import redact, remember_secrets

if TYPE_CHECKING:
    from hookline.rewards import IntegratedRewardConfig
    from hookline.rollout import Curriculum, CurriculumConfig, RolloutWorker
    from hookline.rollout.sources import RolloutSource

__all__ = ["Trainer"]

logger = logging.getLogger("hookline.training")


class Trainer:
    """Trains a policy with rollouts of a curriculum's lessons or, given a dataset, on its examples.

    :param curriculum: the lessons; CartPole without a curriculum and a dataset.
    :param policy: a torch module, or a specification such as `MLPPolicy` or `TransformerPolicy`. The methods it needs
        are in `hookline.policies.protocol`. Or a Hugging Face causal LM: its folder, its name on the hub, or the model.
        None for `config.policy`, and without one for a default that fits the first lesson.
    :param dataset: a sequence of examples, each a mapping of names to numbers; see `hookline.training.supervised_loop`.
    :param validation_dataset: held-out examples.
    :param plugins: receives the events. The default manager has no plugins; `hookline.train` and `hookline.launcher`
        load the installed ones.
    :param worker: your own rollout worker. Its config then replaces `curriculum` and the sizes in `config.rollout`.
    :param rewards: how the reward processor rewards and verifies text rollouts; None for the lessons' own rewards.
    :param warm_start: supervised training before the first rollout.
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
        config = config or TrainerConfig()
        check_config(config)
        config, policy = given_policy(config, policy)
        self.config = config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.ranks = join_ranks(config.rank_timeout_seconds)
        self.plugins = plugins or (worker.plugins if worker is not None else PluginManager(rank=self.ranks.rank))
        if self.plugins.rank != self.ranks.rank:
            raise TrainingError(
                f"this is rank {self.ranks.rank}, but its plugin manager has rank {self.plugins.rank}: "
                "create the manager with rank=int(os.environ['RANK'])"
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
        self.source: RolloutSource | None = None
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
        use_module_for_rollouts(self.worker, module, choose_device(config.learner.device))
        self.source = self._build_source(self._use_rewards(rewards))
        self._check_rows()
        default_losses = ("grpo",) if self.worker.plays_text else ("ppo_actor", "ppo_critic")
        learner = self._build_learner(module, {name: {} for name in default_losses})
        return RolloutLoop(
            config.rollout,
            learner,
            self.worker,
            self.source,
            self._order,
            None if warm_start is None else WarmStartPhase(warm_start, learner, self.worker, self._order, self.plugins),
        )

    def _use_rewards(self, config: IntegratedRewardConfig | None) -> IntegratedRewardConfig | None:
        """Reward rollouts by this config. Returns it with verification off if there is no verifier."""
        if config is None:
            return None
        assert self.worker is not None
        if not self.worker.plays_text:
            raise TrainingError("`rewards` apply to text only, but these lessons are environments with own rewards")
        if config.enable_verification and not self.plugins.hook.verify_episodes.get_hookimpls():
            logger.info("episodes are not verified, since no verifier is active: pip install hookline-verifiers")
            config = replace(config, enable_verification=False)
        self.worker.player.use_rewards(config)
        return config

    def _build_source(self, rewards: IntegratedRewardConfig | None) -> RolloutSource:
        from hookline.rollout.sources import SourceRequest, build_source

        assert self.worker is not None
        config, ranks = self.config.rollout, self.ranks
        share = config.workers // ranks.world_size + (ranks.rank < config.workers % ranks.world_size)
        if config.source != "local" and not share:
            raise TrainerConfigError(
                f"rollout.workers is {config.workers}, and there are {ranks.world_size} ranks: each needs at least one"
            )
        request = SourceRequest(self.worker, rewards, share or 1, config.max_staleness, config.source_options)
        return build_source(config.source, request, self.plugins)

    def _check_rows(self) -> None:
        assert self.worker is not None
        own = self.worker.config
        rows = own.sampling.samples_per_prompt if self.worker.plays_text else own.steps_per_rollout
        per_rollout = own.num_environments * rows
        check_divisible(per_rollout * self.config.rollout.rollouts_per_epoch, self.config.rollout.minibatches)

    def _build_learner(self, policy: Any, default_losses: Mapping[str, Mapping[str, Any]]) -> Learner:
        if policy is None:
            raise TrainingError(
                "a dataset needs a policy: pass a torch module, a TransformerPolicy or a model's folder to the trainer"
            )
        module = as_module(policy, self.config.seed)
        losses = build_losses(default_losses if self.config.losses is None else self.config.losses, self.plugins)
        self.learner = learner = Learner(module, losses, self.config.optimizer, self.config.learner, self.ranks)
        self.policy = self.state.policy = module
        self.optimizer = self.state.optimizer = learner.optimizer
        self._losses = losses
        return learner

    # -- use ------------------------------------------------------------------------------------------------------

    def add_hook(self, hook: Any) -> None:
        """Add a plugin, a `hookline.hooks.Hook` or a `TrainerHook`. It is called from the next event on."""
        self._hooks.add(hook)

    def remove_hook(self, hook: Any) -> bool:
        """Remove a hook that was added. Returns whether it was there."""
        return self._hooks.remove(hook)

    def train(self) -> TrainerState:
        """Run to the end and return the final state. Raises the error of a run that fails."""
        self.ranks.join()
        if self.learner.device.type == "cpu":
            keep_freed_memory()
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
                gc_freeze() as freeze,
                Session(
                    self.plugins, self.state, rollouts=self._rollouts_made, restored_from=self._restored_from
                ) as session,
            ):
                self._check_start(session)
                # Ranks may have restored or initialized other weights: all start with those of rank 0.
                self.learner.agree()
                self._share_progress()
                try:
                    for _ in self.loop.epochs(session):
                        self._share_progress()
                        freeze()  # after the first epoch, when everything is imported and compiled
                except BaseException:
                    self.loop.stop()
                    raise
        finally:
            self.loop.stop()  # not before: at the end of the session, plugins may evaluate the policy
            self._restored_from = None
            for name in own:
                self.plugins.unregister(name=name)
            self.ranks.leave()
        return self.state

    def _check_start(self, session: Session) -> None:
        """Raise when the ranks, each of which restored the run by itself, found different checkpoints."""
        restored = session.restored
        start = {
            "epoch": session.start_epoch,
            "step": self.state.step,
            "resumes from": getattr(restored, "fingerprint", restored) or "nothing",
        }
        starts = self.ranks.gather(start)
        if any(other != starts[0] for other in starts):
            shown = "; ".join(
                f"rank {rank}: {', '.join(f'{name} {value}' for name, value in own.items())}"
                for rank, own in enumerate(starts)
            )
            raise RankError(
                f"the ranks do not start at the same point of the run ({shown}): they see different checkpoints. "
                f"Use the same folder for all ranks, on a shared file system; here it is {self.state.run_dir}"
            )

    def _share_progress(self) -> None:
        """Gather the state of all ranks before the epoch ends, for checkpoints, which rank 0 saves alone."""
        if self.ranks.world_size > 1:
            self.learner.gather()
            self._progress_of_ranks = self.ranks.gather(self._own_progress())

    def _rollouts_made(self) -> int:
        return -1 if self.worker is None else self.worker.step

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The complete state of the run between two epochs, as arrays and JSON values.

        With `fsdp2` only rank 0's state is whole. All ranks load that one.
        """
        state = self.state
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": {"epoch": state.epoch, "step": state.step, "agent_step": state.agent_step},
            "progress": self.progress(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Make the next `train()` resume from a state, at the epoch after the last complete one."""
        self.load_progress(saved["progress"])  # first: it raises when this is not the same run
        self.policy.load_state_dict(saved["policy"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for name, value in saved["counters"].items():
            setattr(self.state, name, value)
        self._restored_from = "Trainer.load_state_dict"

    def progress(self) -> dict[str, Any]:
        """The rngs, the data order and the states of loop and losses, by rank, as JSON values."""
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
        """Restore the result of `progress`."""
        saved = progress["ranks"]
        if len(saved) != self.ranks.world_size:
            raise TrainingError(
                f"the run was saved with {len(saved)} rank(s) and cannot resume exactly with {self.ranks.world_size}: "
                "use the same number of ranks, or start a new run from its weights"
            )
        own = saved[self.ranks.rank]
        for loss in self._losses:
            loss.load_state_dict(own["losses"].get(loss.name, {}))
        restore_generators(own["generators"])
        self._order.bit_generator.state = own["order"]
        self.loop.load_state_dict(own["loop"])
