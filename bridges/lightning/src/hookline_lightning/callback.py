"""`HooklineCallback`: announces the moments of `trainer.fit` to Hookline's plugins.

Lightning owns the loop, its checkpoints and its resume; a session counts epochs and steps as Lightning does. An epoch
is Lightning's, and a step is a step of an optimizer (`trainer.global_step`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from hookline.session import RunFolderError, Session, holds_run, open_session
from hookline_lightning.logged import LoggedNumbers, loss_of
from hookline_lightning.saved import from_saved, generator_states, generators_of_all, set_generators, to_saved

__all__ = ["HooklineCallback"]

HOST: Final = "lightning"
VALIDATION_LOSSES: Final = ("val_loss", "val/loss", "valid_loss", "validation_loss")
"""Names by which modules log the loss of a validation."""


class HooklineCallback(Callback):
    """Makes a fit a run of Hookline's, with all installed plugins.

    :param run_dir: the run's folder. By default a fit that is resumed goes on in the folder that its checkpoint names,
        and a new one gets the next free `runs/lightning-N` in the trainer's `default_root_dir`.
    :param plugins: further plugins by name, which need not be installed.
    """

    def __init__(self, run_dir: str | Path | None = None, *, plugins: Mapping[str, object] | None = None) -> None:
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.plugins = dict(plugins or {})
        self.session: Session | None = None
        """The session of the fit that is going on; None at other times."""
        self._ending = ExitStack()
        self._loaded: dict[str, Any] | None = None
        """What the checkpoint holds that this fit resumes from."""
        self._saved: dict[str, Any] = {}
        """What a checkpoint gets that is saved when the fit is over."""

    # -- beginning and end --------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loaded = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_generators(trainer)  # before the loader of this fit draws its order

    def _restore_generators(self, trainer: Trainer) -> None:
        states = self._loaded["generators"] if self._loaded is not None else []
        if len(states) == trainer.world_size:
            set_generators(states[trainer.global_rank])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the run: by now Lightning has restored all that a checkpoint holds."""
        saved = (self._loaded if trainer.ckpt_path else self._saved) or {}
        run_dir = self._folder_of_run(trainer, saved)
        # Not by `ckpt_path`: a search for a learning rate or batch size leaves one, and an earlier fit of this trainer
        # may have failed before its first step.
        is_resumed = bool(saved) or trainer.global_step > 0
        optimizers = trainer.optimizers
        self._numbers = LoggedNumbers()
        self._numbers.take(trainer)
        self._has_epoch = self._has_step = self._has_minibatch = False
        self._ending = ExitStack()
        self.session = self._ending.enter_context(
            open_session(
                run_dir,
                policy=pl_module,
                optimizer=optimizers[0] if len(optimizers) == 1 else {str(i): own for i, own in enumerate(optimizers)},
                total_epochs=None if trainer.max_epochs in (None, -1) else trainer.max_epochs,
                total_steps=_total_steps(trainer, pl_module),
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                config=_config(trainer, pl_module),
                host=HOST,
                host_state=_host_state(trainer, saved) if is_resumed else None,
                plugins=self.plugins,
            )
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self._log_late(self.session, trainer)
            self._saved = self.state_dict()
            self.session = None
            self._ending.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Fail the run: an error, Ctrl-C, or the exception that Lightning makes of SIGTERM."""
        if self.session is not None:
            try:
                # Other ranks may never come here, so that none is waited for.
                self._saved = _saved_by(self.session, [generator_states()])
            except Exception as error:
                exception.add_note(f"then the states of plugins could not be saved: {error!r}")
            self.session = None
            self._ending.__exit__(type(exception), exception, exception.__traceback__)

    def _folder_of_run(self, trainer: Trainer, saved: Mapping[str, Any]) -> Path:
        run_dir = self.run_dir
        if trainer.is_global_zero:
            if run_dir is None:
                before = Path(saved.get("run_dir", ""))
                run_dir = before if saved and holds_run(before) else _new_folder(Path(trainer.default_root_dir, "runs"))
            elif not saved and holds_run(run_dir):
                raise RunFolderError(_why_refused(trainer, run_dir))
        return Path(trainer.strategy.broadcast(str(run_dir)))

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        session = self.session
        return self._saved if session is None else _saved_by(session, generators_of_all(session.state.world_size))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    # -- epochs and steps ---------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self._begin_epoch(self.session, trainer)

    def _begin_epoch(self, session: Session, trainer: Trainer) -> None:
        self._log_late(session, trainer)
        session.begin_epoch(trainer.current_epoch)
        session.begin_train_phase()
        self._has_epoch = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        session = self.session
        if session is None:
            return
        if not self._has_epoch:  # resumed in the middle of an epoch, whose start Lightning does not announce again
            self._begin_epoch(session, trainer)
        self._log_late(session, trainer)
        self._begin_step(session)

    def _begin_step(self, session: Session) -> None:
        if not self._has_step:  # otherwise gradients are being accumulated
            session.begin_step()
            self._has_step, self._has_minibatch = True, False

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """End a minibatch of manual optimisation, where the module may zero its gradients after each step.

        In automatic optimisation gradients stay until the next batch, and `on_train_batch_end` comes after the step.
        """
        session = self.session
        if session is None or pl_module.automatic_optimization:
            return
        if self._has_minibatch and trainer.global_step >= session.state.step:  # of another optimizer, in this batch
            self._end_step(session, {})
        self._begin_step(session)
        if not self._has_minibatch:
            session.end_minibatch()
            self._has_minibatch = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        session = self.session
        if session is None:
            return
        steps = session.state.step + (not self._has_minibatch)
        if self._has_step and trainer.global_step >= steps:
            metrics = self._numbers.take(trainer)
            loss = loss_of(outputs) * (trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1)
            if not math.isnan(loss):
                metrics.setdefault("train/loss", loss)
            self._end_step(session, metrics)
            if math.isinf(trainer.num_training_batches):  # an epoch without end
                self._stop_if_told(session, trainer)

    def _end_step(self, session: Session, metrics: Mapping[str, float]) -> None:
        session.end_step(metrics)
        self._has_step = self._has_minibatch = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        session = self.session
        if session is None:
            return
        if not self._has_epoch:  # resumed after the epoch's last batch: an iterator was made, and is not used
            self._restore_generators(trainer)
            self._begin_epoch(session, trainer)
        self._log_late(session, trainer)
        session.end_train_phase()
        session.end_epoch()
        self._has_epoch = False
        self._stop_if_told(session, trainer)

    def _stop_if_told(self, session: Session, trainer: Trainer) -> None:
        # A plugin of rank 0 alone may have said so, and all ranks must stop.
        session.state.stop_reason = trainer.strategy.broadcast(session.state.stop_reason)
        trainer.should_stop = trainer.should_stop or session.should_stop()

    def _log_late(self, session: Session, trainer: Trainer) -> None:
        """Report what was logged after the last step had ended, such as the means over an epoch."""
        late = self._numbers.take(trainer)
        if late:
            session.log(late)

    # -- validation ---------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        session = self.session
        if session is None:  # a check before the fit, or `trainer.validate`
            return
        self._log_late(session, trainer)
        self._numbers.forget_values()
        self._losses: list[float] = []
        session.begin_validation(is_last_step=_is_last_validation(trainer))

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.session is not None:
            self.session.begin_validation_step(len(self._losses))

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.session is not None:
            self._losses.append(loss_of(outputs))
            self.session.end_validation_step(len(self._losses) - 1, self._losses[-1])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is None:
            return
        metrics = self._numbers.take(trainer)
        mean = sum(self._losses) / len(self._losses) if self._losses else math.nan
        loss = next((metrics[name] for name in VALIDATION_LOSSES if name in metrics), mean)
        self.session.end_validation(loss, metrics=metrics)


def _saved_by(session: Session, generators: list[dict[str, Any]]) -> dict[str, Any]:
    """What a checkpoint gets. Lightning keeps what rank 0 returns."""
    state = session.state
    if state.rank != 0:
        return {}
    run_dir = str(Path(state.run_dir or "").absolute())
    return {**to_saved(session.host_state()), "generators": generators, "run_dir": run_dir}


def _new_folder(runs: Path) -> Path:
    """A folder of this run alone, also where several begin at once."""
    for number in count():
        folder = runs / f"lightning-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("there is always a next number")


def _why_refused(trainer: Trainer, run_dir: Path) -> str:
    if trainer.ckpt_path and trainer.global_step > 0:
        return (
            f"the run in {run_dir} cannot go on from {trainer.ckpt_path}: that checkpoint was saved without "
            "HooklineCallback, so that counters and plugin states are missing. Resume from one that has them, or give "
            "this run another run_dir"
        )
    return (
        f"{run_dir} holds a run already: go on with it by trainer.fit(model, ckpt_path=...), or give the new run "
        "another run_dir"
    )


def _host_state(trainer: Trainer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Lightning's own counters, and the states of plugins as far as its checkpoint has any."""
    counters = saved.get("counters", {"agent_step": 0})
    # The epoch is the last complete one. A checkpoint may have been saved in the middle of the next.
    counters = {**counters, "epoch": trainer.current_epoch - 1, "step": trainer.global_step}
    return {"counters": counters, "plugins": from_saved(saved.get("plugins", {}))}


def _total_steps(trainer: Trainer, pl_module: LightningModule) -> int | None:
    if trainer.max_steps != -1 and not pl_module.automatic_optimization:
        return trainer.max_steps
    if not pl_module.automatic_optimization:
        return None  # the module decides how often its optimizers step
    total = trainer.estimated_stepping_batches
    return int(total) if math.isfinite(total) else None


def _is_last_validation(trainer: Trainer) -> bool:
    is_last_epoch = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
    return is_last_epoch or 0 <= trainer.max_steps <= trainer.global_step or trainer.should_stop


def _config(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """What the run was told, as JSON can hold it."""
    hparams = {name: value for name, value in dict(pl_module.hparams).items() if _is_plain(value)}
    return {
        "version": lightning.__version__,
        "module": f"{type(pl_module).__module__}.{type(pl_module).__qualname__}",
        "hparams": hparams,
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "precision": str(trainer.precision),
        "strategy": type(trainer.strategy).__name__,
        "log_dir": trainer.log_dir,
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))
