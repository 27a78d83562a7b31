"""`Session`: emits the events of a run in their order, for any training loop."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Final

from hookline.errors import HooklineError
from hookline.plugin_manager.listing import list_plugins
from hookline.plugin_manager.lock_file import fingerprint_of_plugin, fingerprints_of_packages
from hookline.plugin_manager.manager import PluginManager
from hookline.session.run_folder import claimed_run_folder, holds_run, write_config
from hookline.session.signals import termination_as_exception
from hookline_hookspecs import TrainerState
from hookline_hookspecs.errors import describe_error

__all__ = ["Session", "StateTypeError"]

logger = logging.getLogger("hookline.session")

COUNTERS: Final = ("epoch", "step", "agent_step")

CHECKED: Final = ("epoch", "step", "agent_step", "loss_stats", "rollout_stats", "eval_scores", "shared")
"""Fields of the state whose types must not change: the loop and other plugins depend on them."""


class StateTypeError(HooklineError, TypeError):
    """A plugin has changed the type of the state or of one of its fields."""


class Session:
    """One run from `on_new_training_run` to its end: `with Session(plugins, state) as session: ...`.

    The loop calls a method when an epoch or step begins or ends; the session counts them in `state` and emits the
    events. Leaving the `with` block completes the run. Leaving it by an exception, Ctrl-C, SIGTERM, SIGHUP or
    `sys.exit()` fails the run, and the exception propagates unchanged.

    :param rollouts: returns the number of rollouts made so far; called after a run was restored.
    :param restored_from: what the state was restored from before the session. Plugins do not restore it again.
    :param host_state: what `host_state()` returned when `state.host` saved the checkpoint that it now resumes from.
        Counters and plugin states are restored from it; the host restores policy and optimizer.
    """

    def __init__(
        self,
        plugins: PluginManager,
        state: TrainerState,
        *,
        rollouts: Callable[[], int] | None = None,
        restored_from: str | None = None,
        host_state: Mapping[str, Any] | None = None,
    ) -> None:
        self.plugins = plugins
        self.emit = plugins.emit
        self.state = state
        self.start_epoch = state.epoch
        """The first epoch to train: 0, or the one after the last complete epoch of a restored run."""
        self.restored: Any = restored_from
        """What the run was restored from, such as a `CheckpointRecord`; None for a new run."""
        self._validated: tuple[tuple[int, int], float] | None = None
        """Epoch and step of the latest validation, and its loss."""
        # A user's own state class may lack optional fields.
        self._resume: bool = getattr(state, "resume", False)
        self._rollouts = rollouts
        self._write_config: Callable[[], None] = lambda: None
        self._host_state = host_state
        self._complete_epoch = state.epoch - 1
        self._means = RunningMeans()
        self._has_ended_minibatch = False
        self._cleanup = ExitStack()

    # -- beginning and end ----------------------------------------------------------------------------------------

    def __enter__(self) -> Session:
        self._check_can_resume()
        with ExitStack() as cleanup:
            self._claim_folder(cleanup)
            cleanup.enter_context(termination_as_exception())
            self._cleanup = cleanup.pop_all()
        try:
            self._begin()
        except BaseException as error:
            self._fail(error)
            raise
        return self

    def _check_can_resume(self) -> None:
        host = getattr(self.state, "host", None)
        if host is None and self._host_state is not None:
            raise HooklineError("host_state was saved by another library's trainer: name it in state.host")
        if host is not None and self._resume and self._host_state is None:
            raise HooklineError(
                f"this would be half a resume: {host} restores weights, optimizer and data order from its own "
                "checkpoint, and counters and plugin states must come from the same one, as host_state"
            )
        if host is not None:
            self._resume = self.state.resume = self._host_state is not None
        elif self._resume and not self.plugins.hook.restore_training_run.get_hookimpls():
            raise HooklineError(
                "resuming needs a plugin that restores runs, and none is active: pip install hookline-checkpoint, "
                "or see `hookline plugins` for why it is disabled"
            )

    def _claim_folder(self, cleanup: ExitStack) -> None:
        config, run_dir = getattr(self.state, "config", {}), getattr(self.state, "run_dir", None)
        records = self.plugins.records
        active = [record for record in records if record.state == "active"]
        config["plugins"] = {
            own.name: {**fingerprint_of_plugin(record), "options": own.options}
            for record, own in zip(active, list_plugins(self.plugins, active), strict=True)
        }
        config["disabled"] = sorted({own.name for own in records if own.state == "disabled"} - {*config["plugins"]})
        config["packages"] = fingerprints_of_packages()
        if getattr(self.state, "host", None) is not None:
            config["host"] = self.state.host
        if run_dir is not None and self.plugins.rank == 0:
            # What a host resumes from is its own checkpoint, which may have come without the folder.
            resume = self._resume and (self._host_state is None or holds_run(run_dir))
            cleanup.enter_context(claimed_run_folder(run_dir, resume=resume))
            self._write_config = partial(write_config, run_dir, config)
        if not self._resume:
            self._write_config()

    def _begin(self) -> None:
        state = self.state
        self._check = StateCheck(self.plugins, state)
        if hasattr(state, "shared"):
            state.shared.setdefault("hookline", {})["failures"] = self.plugins.faults.described
        self.plugins.set_clocks(step=0, epoch=0, rollout=0)
        self._announce("on_new_training_run")
        self.restored = restored = self._restore()
        if self._resume:
            # After the restore: a run that cannot be resumed with this config keeps its old one.
            self._write_config()
            if restored is None:
                logger.warning("nothing to resume from in %s: the run starts from the beginning", state.run_dir)
        # A restored state is at the last complete epoch.
        self.start_epoch = state.epoch if restored is None else state.epoch + 1
        if restored is not None:
            rollouts = 0 if self._rollouts is None else self._rollouts()
            self.plugins.set_clocks(step=state.step, epoch=self.start_epoch, rollout=rollouts)
        report = {
            "total_epochs": state.total_epochs,
            "total_steps": state.total_steps,
            "start_epoch": self.start_epoch,
            "start_step": state.step,
        }
        self._announce("pre_training", report_data=report)

    def _restore(self) -> Any:
        state = self.state
        if self._host_state is not None:
            for name in COUNTERS:
                setattr(state, name, self._host_state["counters"][name])
            self._complete_epoch = state.epoch
            self.emit.load_plugin_state(state=state, saved=self._host_state["plugins"])
            self._check.after("load_plugin_state")
            return state.host
        if getattr(state, "host", None) is not None:
            return None
        restored = self.restored or self.emit.restore_training_run(state=state)
        self._check.after("restore_training_run")
        return restored

    def host_state(self) -> dict[str, Any]:
        """Counters and plugin states, for the host to keep in its own checkpoint. Call it on rank 0.

        Values are what plugins returned from `save_plugin_state`: JSON, and arrays where a plugin has some. What they
        want on disk before a checkpoint counts is there when this returns. A host may save in the middle of an epoch:
        the counter is of the last one that is complete, -1 for none, and the resumed run begins with the one after it.
        """
        states: dict[str, dict[str, Any]] = {}
        for plugin, saved in self.emit.save_plugin_state(state=self.state).items():
            states.setdefault(plugin, {}).update(saved)
        for plugin, namespace in list(self.state.shared.items()):
            try:
                namespace.pop("before_checkpoint", lambda: None)()
            except Exception as error:
                logger.warning("plugin %r failed before a checkpoint of %s: %r", plugin, self.state.host, error)
        counters = {name: getattr(self.state, name) for name in COUNTERS}
        return {"counters": counters | {"epoch": self._complete_epoch}, "plugins": states}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self._fail(error)
            return
        try:
            self._complete()
        except BaseException as late_error:
            self._fail(late_error)
            raise
        self._end()

    def _complete(self) -> None:
        state = self.state
        report = {
            "final_epoch": state.epoch,
            "final_step": state.step,
            "total_steps": state.total_steps,
            "final_val_loss": self._final_val_loss(),
        }
        self._announce("post_training", report_data=report)
        self._announce("on_training_complete")

    def _final_val_loss(self) -> float | None:
        """The loss of a validation after the last step. Only now is it known which one that was: it may end the run."""
        place, loss = self._validated or (None, None)
        return loss if place == (self.state.epoch, self.state.step) else None

    def _fail(self, error: BaseException) -> None:
        try:
            self.emit.on_training_failed(state=self.state, error=error)
        except Exception as second_error:
            # The user must see the first error; a plugin's error in response to it is a note.
            error.add_note(f"then on_training_failed raised {describe_error(second_error)}")
        finally:
            self._end()

    def _end(self) -> None:
        self.plugins.drain()
        self._cleanup.close()

    def _announce(self, event: str, **arguments: Any) -> None:
        getattr(self.emit, event)(state=self.state, **arguments)
        self._check.after(event)

    # -- epochs and phases ----------------------------------------------------------------------------------------

    def epochs(self, until: Callable[[], bool] | None = None) -> Iterator[int]:
        """The remaining epochs, 0-based. Emits the events of the start and end of each.

        :param until: called before each epoch; True ends the run early. The default is `should_stop`.
        """
        until = until or self.should_stop
        total = self.state.total_epochs
        for epoch in itertools.count(self.start_epoch) if total is None else range(self.start_epoch, total):
            if until():
                return
            self.begin_epoch(epoch)
            yield epoch
            self.end_epoch()

    def should_stop(self) -> bool:
        """Whether a plugin has set `state.stop_reason`, which ends the run after the current epoch."""
        return getattr(self.state, "stop_reason", None) is not None

    def begin_epoch(self, epoch: int) -> None:
        self.state.epoch = epoch
        self._announce("on_epoch_start")

    def begin_train_phase(self) -> None:
        """The epoch's data is ready, and gradient steps follow."""
        self._means.take()
        self._announce("on_train_phase_start")

    def end_train_phase(self) -> None:
        """The epoch's gradient steps are done; `loss_stats` become means over them."""
        self.state.loss_stats = self._means.take()
        self._announce("on_train_phase_end")

    def end_epoch(self) -> None:
        self._complete_epoch = self.state.epoch
        self._announce("on_epoch_end")

    # -- steps ----------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A gradient step is about to be taken."""
        self._announce("pre_training_step", report_data=self._step_report())

    def end_minibatch(self, metrics: Mapping[str, float] | None = None) -> None:
        """The gradient of a step is computed and still in the parameters: count the step, and emit `on_mb_end`.

        Call it before the optimizer zeroes the gradients; `end_step` does it where the loop did not.
        """
        self.state.step += 1
        self.state.loss_stats = dict(metrics or {})
        self._has_ended_minibatch = True
        self._announce("on_mb_end")

    def end_step(self, metrics: Mapping[str, float] | None = None) -> None:
        """A gradient step was taken: report its metrics, if they are known by now; see `log`."""
        metrics = metrics or {}
        if not self._has_ended_minibatch:
            self.end_minibatch(metrics)
        self._has_ended_minibatch = False
        self.state.loss_stats = dict(metrics)
        self._means.add(metrics)
        report = {**self._step_report(), **metrics}
        self._announce("post_training_step", report_data=report)
        self._log(report)

    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Report numbers that become known after their step has ended.

        :param step: the number of steps complete when they were measured; the current one by default.
        """
        self._means.add(metrics)
        self.emit.log_metrics(report_data=dict(metrics), step=self.state.step if step is None else step)

    def _step_report(self) -> dict[str, Any]:
        state = self.state
        return {"current_epoch": state.epoch, "current_step": state.step, "total_steps": state.total_steps}

    def _log(self, report: Mapping[str, Any]) -> None:
        self.emit.log_metrics(report_data=dict(report), step=self.state.step)

    # -- validation -----------------------------------------------------------------------------------------------

    def begin_validation(self, *, is_last_step: bool = False) -> None:
        report = {"current_epoch": self.state.epoch, "is_last_step": is_last_step}
        self._announce("pre_validation", report_data=report)

    def begin_validation_step(self, batch_index: int) -> None:
        report = {"current_epoch": self.state.epoch, "batch_index": batch_index}
        self._announce("pre_validation_step", report_data=report)

    def end_validation_step(self, batch_index: int, val_score: float) -> None:
        report = {"current_epoch": self.state.epoch, "batch_index": batch_index, "val_score": val_score}
        self._announce("post_validation_step", report_data=report)

    def end_validation(self, val_avg_loss: float, *, metrics: Mapping[str, float] | None = None) -> None:
        """A validation is complete. The loss is the mean over all ranks.

        :param metrics: other metrics of the validation, by name.
        """
        self._validated = (self.state.epoch, self.state.step), val_avg_loss
        report = {"current_epoch": self.state.epoch, "val_avg_loss": val_avg_loss, **(metrics or {})}
        self._announce("post_validation", report_data=report)
        self._log(report)


class RunningMeans:
    """The mean of each metric, over the steps that reported it."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, numbers: Mapping[str, float]) -> None:
        sums, counts = self._sums, self._counts
        for name, value in numbers.items():
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the means and reset them."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


class StateCheck:
    """Checks that plugins do not change the types of the state's fields."""

    def __init__(self, plugins: PluginManager, state: Any) -> None:
        self._plugins = plugins
        self._state = state
        self._own_type = type(state)
        self._types = [(name, type(getattr(state, name))) for name in CHECKED if hasattr(state, name)]

    def after(self, event: str) -> None:
        """Raise if a type has changed since the session began. `event` was just emitted."""
        state = self._state
        if type(state) is not self._own_type:
            raise StateTypeError(
                f"in {event} a plugin made the state a {type(state).__name__}; it must stay a "
                f"{self._own_type.__name__}. {self._suspects(event)}"
            )
        reason = getattr(state, "stop_reason", None)
        if reason is not None and not isinstance(reason, str):
            raise StateTypeError(
                f"in {event} a plugin set state.stop_reason to {reason!r}, a {type(reason).__name__}; "
                f"it must be a str, or None. {self._suspects(event)}"
            )
        for name, expected in self._types:
            if type(getattr(state, name)) is not expected:
                value = getattr(state, name)
                raise StateTypeError(
                    f"in {event} a plugin set state.{name} to {value!r}, a {type(value).__name__}; it must stay a "
                    f"{expected.__name__}. {self._suspects(event)}"
                )

    def _suspects(self, event: str) -> str:
        names = [repr(hookimpl.plugin_name) for hookimpl in getattr(self._plugins.hook, event).get_hookimpls()]
        return f"Plugins called: {', '.join(reversed(names))}. Plugins write to state.shared, under their own name."
