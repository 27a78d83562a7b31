"""`HooklineCallback`: announces the moments of a `transformers.Trainer`, or one of TRL's, to every plugin."""

from __future__ import annotations

import atexit
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers import __version__ as transformers_version
from transformers.trainer_callback import ExportableState

from hookline.errors import HooklineError
from hookline.plugin_manager.settings import Settings
from hookline.session import RunFolderError, open_session
from hookline_transformers.host_checkpoint import pack, unpack
from hookline_transformers.logs import evaluation_prefix, is_summary, training_numbers, validation_numbers
from hookline_transformers.ranks import Ranks
from hookline_transformers.shards import Whole, is_sharded
from hookline_transformers.training_run import TrainingRun

__all__ = ["HooklineCallback", "hookline_run", "run_of"]

HOST: Final = "transformers"
SAVED: Final = "hookline"

_runs: dict[int, TrainingRun] = {}
"""The runs that are under way, by the identity of the trainer's state: that is what a reward function is given."""


def run_of(trainer_state: TrainerState | None) -> TrainingRun | None:
    """The run of the trainer with this state; None for one without a callback, or between trainings."""
    return _runs.get(id(trainer_state))


class HooklineCallback(TrainerCallback, ExportableState):
    """Gives a trainer's run to all installed plugins.

    :param run_dir: the run's folder, where plugins leave their files. Not the trainer's `output_dir`.
    :param plugins: plugins of your own by name, besides the installed ones.
    :param config: what else `config.json` should say of the run; the trainer's arguments are in it.
    :param settings: which plugins are wanted, and how (default: those of this folder and environment).
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        plugins: Mapping[str, object] | None = None,
        config: Mapping[str, Any] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self._plugins = plugins
        self._config = dict(config or {})
        self._settings = settings
        self._run: TrainingRun | None = None
        self._is_whole = True
        self._cleanup = ExitStack()

    # -- the beginning --------------------------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.restore_callback_states_from_checkpoint:
            raise HooklineError(
                "restore_callback_states_from_checkpoint=True has transformers make every callback anew from JSON, "
                "which cannot hold plugins: leave it off. HooklineCallback restores its plugins without it"
            )
        if args.auto_find_batch_size:
            raise HooklineError(
                "auto_find_batch_size=True begins a training again without a word to callbacks, so that a run would "
                "have two beginnings: leave it off"
            )
        if self.run_dir.resolve() == Path(args.output_dir or "").resolve():
            raise HooklineError(
                f"{self.run_dir} is the trainer's output_dir, where save_model() writes a config.json of its own: "
                f"give HooklineCallback another folder, such as {self.run_dir / 'hookline'}"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.on_init_end(args, state, control)  # a callback that was added later was not told of it
        self._left_behind()
        saved = self._saved_in(state)
        generation_every = _generation_every(args)
        if saved is not None:
            _refuse_another_run(args, state, saved)
        self._is_whole = not args.save_only_model
        policy, optimizer = kwargs["model"], kwargs["optimizer"]
        shards: tuple[Whole, ...] = ()
        if is_sharded(policy):
            policy, optimizer = shards = Whole(policy), Whole(optimizer)
        self._cleanup = cleanup = ExitStack()
        with cleanup, _told_how_to_resume():  # until all of it has begun
            ranks = Ranks()
            cleanup.callback(ranks.leave)
            after_session = cleanup.enter_context(ExitStack())
            session = cleanup.enter_context(
                open_session(
                    self.run_dir,
                    policy=policy,
                    optimizer=optimizer,
                    total_epochs=_total_epochs(args, state),
                    total_steps=state.max_steps,
                    rank=args.process_index,
                    world_size=args.world_size,
                    config=self._config | _described(args),
                    host=HOST,
                    host_state=saved and saved["session"],
                    plugins=self._plugins,
                    settings=self._settings,
                )
            )
            self._run = _runs[id(state)] = TrainingRun(
                session,
                ranks,
                after_session,
                shards=shards,
                first_epoch=int(state.epoch),
                generation_every=generation_every,
                kept=saved and saved["kept"],
            )
            after_session.callback(_runs.pop, id(state), None)
            atexit.register(self._process_ends)
            self._cleanup = cleanup.pop_all()
        if args.eval_on_start:
            self._run.begin_validation(is_last_step=False)

    def _saved_in(self, state: TrainerState) -> dict[str, Any] | None:
        """What is Hookline's in the checkpoint that the trainer resumes from; None for a training that begins."""
        if state.global_step == 0:
            return None
        callbacks: Any = state.stateful_callbacks  # annotated as what it is made from
        own = callbacks.get(type(self).__name__, {})
        saved = own.get("attributes", {}).get(SAVED) if isinstance(own, Mapping) else None
        if saved is None:
            raise HooklineError(
                f"the trainer resumes at step {state.global_step} from a checkpoint that was saved without "
                "HooklineCallback, so what plugins must remember is not in it: this would be half a resume. Resume "
                "from another checkpoint, or go on without the callback"
            )
        unpacked: dict[str, Any] = unpack(saved)
        return unpacked

    def state(self) -> dict[str, Any]:
        """What the trainer keeps in `trainer_state.json` of its checkpoint, on rank 0."""
        if self._run is None:
            return {"args": {}, "attributes": {}}
        run = self._run
        run.settle()
        saved = {
            "session": pack(run.session.host_state()),
            "kept": run.kept,
            "is_in_epoch": run.has_open_epoch,
            "is_whole": self._is_whole,
            "ranks": run.session.state.world_size,
        }
        return {"args": {}, "attributes": {SAVED: saved}}

    # -- epochs and steps -----------------------------------------------------------------------------------------

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.begin_epoch()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.begin_step()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.end_pass()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.end_minibatch()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.session.state.agent_step = int(state.num_input_tokens_seen)
            self._run.end_step(numbers_follow=control.should_log)
            self._look_ahead(self._run, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.end_epoch(numbers_follow=control.should_log)
            self._look_ahead(self._run, state, control)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs: Mapping[str, Any] = kwargs["logs"]
        if self._run is None or (evaluation_prefix(logs) is not None and not is_summary(logs)):
            return  # the numbers of an evaluation come with its end
        if is_summary(logs):
            self._run.settle()  # an epoch whose numbers had been logged with its last step
        awaited = self._run.awaits_numbers
        self._run.log(training_numbers(logs), state.global_step)
        if awaited:
            self._look_ahead(self._run, state, control)

    def _look_ahead(self, run: TrainingRun, state: TrainerState, control: TrainerControl) -> None:
        """A step or an epoch has ended, on all ranks: whether training stops here, and whether a validation follows."""
        if run.awaits_numbers:
            return
        if run.should_stop():
            control.should_training_stop = True
        if control.should_evaluate:
            run.begin_validation(is_last_step=_is_last_step(state))

    # -- validation -----------------------------------------------------------------------------------------------

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.begin_validation(is_last_step=_is_last_step(state))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._run is None:
            return
        metrics: Mapping[str, Any] = kwargs["metrics"]
        loss, numbers = validation_numbers(metrics, evaluation_prefix(metrics) or "eval")
        self._run.begin_validation(is_last_step=_is_last_step(state))
        self._run.end_validation(loss, numbers)
        if self._run.should_stop():
            control.should_training_stop = True

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        self.on_evaluate(args, state, control, metrics=metrics)

    # -- the end --------------------------------------------------------------------------------------------------

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run is not None:
            self._run.finish()
            self._end(None)

    def fail(self, error: BaseException) -> None:
        """Training was left by an exception. `hookline_run` calls it."""
        if self._run is not None:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._run = None
        atexit.unregister(self._process_ends)
        if error is None:
            self._cleanup.close()
            return
        try:
            self._cleanup.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise

    def _left_behind(self) -> None:
        """Fail a run whose training has ended without a word to callbacks."""
        self.fail(HooklineError("trainer.train() has ended, neither by its end nor within hookline_run(trainer)"))

    def _process_ends(self) -> None:
        error = getattr(sys, "last_value", None)  # what the interpreter has just printed a traceback of
        if isinstance(error, BaseException):
            self.fail(error)
        self._left_behind()


@contextmanager
def hookline_run(trainer: Any) -> Iterator[None]:
    """Have a training that is left by an exception, Ctrl-C or SIGTERM end as a failed run.

        with hookline_run(trainer):
            trainer.train()

    transformers tells its callbacks of a training's end, and never of an exception. Without this a run that fails is
    told as failed when the process ends, or when the same trainer trains again.
    """
    callbacks = [own for own in trainer.callback_handler.callbacks if isinstance(own, HooklineCallback)]
    if not callbacks:
        raise HooklineError(
            f"this {type(trainer).__name__} has no HooklineCallback: give it callbacks=[HooklineCallback(run_dir=...)]"
        )
    try:
        yield
    except BaseException as error:
        for callback in callbacks:
            callback.fail(error)
        raise


@contextmanager
def _told_how_to_resume() -> Iterator[None]:
    try:
        yield
    except RunFolderError as error:
        error.add_note("a trainer goes on with the run in a folder by trainer.train(resume_from_checkpoint=...)")
        raise


def _refuse_another_run(args: TrainingArguments, state: TrainerState, saved: Mapping[str, Any]) -> None:
    """Raise where what the trainer would go on with is not the run that was saved."""
    reason = None
    if not saved["is_whole"]:
        reason = "was saved with save_only_model=True, without the optimizer and the random numbers"
    elif args.ignore_data_skip:
        reason = "is in the middle of the data, and ignore_data_skip=True would begin with its first rows again"
    elif saved["ranks"] != args.world_size:
        reason = f"was saved by {saved['ranks']} ranks, and there are {args.world_size}: each has its own data"
    elif _generation_every(args) is not None and saved["is_in_epoch"]:
        reason = (
            "was saved in the middle of a generation's steps, and TRL would generate anew there: have save_steps be a "
            f"multiple of {_steps_of_generation(args)}"
        )
    if reason is not None:
        raise HooklineError(
            f"the resumed run would be another one: the checkpoint of step {state.global_step} {reason}. "
            "Resume from another checkpoint, or go on without the callback"
        )


def _is_last_step(state: TrainerState) -> bool:
    return bool(state.global_step >= state.max_steps)


def _generation_every(args: TrainingArguments) -> int | None:
    """Forward passes from one generation to the next, for a trainer that generates what it learns from."""
    of_generation = getattr(args, "steps_per_generation", None)
    return None if of_generation is None else of_generation * getattr(args, "num_iterations", 1)


def _steps_of_generation(args: TrainingArguments) -> int:
    """The least number of steps that end with the last one of a generation."""
    passes = _generation_every(args) or 1
    return math.lcm(passes, args.gradient_accumulation_steps) // args.gradient_accumulation_steps


def _total_epochs(args: TrainingArguments, state: TrainerState) -> int | None:
    if _generation_every(args) is not None:
        return -(-state.max_steps // _steps_of_generation(args))
    # A dataset without a length has epochs without end.
    return None if state.num_train_epochs >= sys.maxsize else state.num_train_epochs


def _described(args: TrainingArguments) -> dict[str, Any]:
    of_any_type: Any = args  # its methods have no annotations
    arguments = json.loads(json.dumps(of_any_type.to_dict(), default=str))
    return {"transformers": {"version": transformers_version, "arguments": arguments}}
