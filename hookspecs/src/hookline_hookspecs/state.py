"""`TrainerState`: all that a training event knows of its run, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

__all__ = ["FrozenDict", "LiveObjectError", "Shared", "TrainerState"]


class LiveObjectError(RuntimeError):
    """A background implementation asked for an object that the training thread goes on changing."""


class FrozenDict(dict[str, Any]):
    """A dictionary that refuses changes, and still is a `dict` to `json` and `isinstance`."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this is a frozen view of the run's state: it cannot be changed")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class Shared(dict[str, dict[str, Any]]):
    """A dictionary of values per plugin: `state.shared["checkpoint"]["latest"]`.

    A plugin writes under its own name and reads under others'. A namespace without values is empty.
    """

    def __missing__(self, namespace: str) -> dict[str, Any]:
        return self.setdefault(namespace, {})

    def frozen(self) -> Mapping[str, Mapping[str, Any]]:
        return _FrozenShared({name: FrozenDict(values) for name, values in list(self.items())})


class _FrozenShared(FrozenDict):
    def __missing__(self, namespace: str) -> FrozenDict:
        return FrozenDict()


@dataclass(slots=True)
class TrainerState:
    """The run so far. The trainer owns it and changes it; plugins read it, and write `shared` under their name.

    A loop of your own fills in what it has: nothing here needs Hookline's trainer.
    """

    run_id: str = ""
    """Names the run in tables and in messages to other systems."""
    run_dir: Path | None = None
    """The run's folder, or None for a run that leaves no files."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the run was told, as JSON can hold it, without secrets. `config.json` in the run's folder is this."""
    resume: bool = False
    """The user wants the run to go on from what its folder holds."""
    host: str | None = None
    """The library whose trainer owns the loop and resumes it from its own checkpoints, such as "transformers"."""

    epoch: int = 0
    """The current epoch, 0-based."""
    step: int = 0
    """Gradient steps taken since the run began."""
    agent_step: int = 0
    """Environment steps or generated tokens since the run began."""
    total_epochs: int | None = None
    """How many epochs the run will have, None when open-ended."""
    total_steps: int | None = None
    """How many gradient steps the run will have, None when open-ended."""
    stop_reason: str | None = None
    """Why the run is to end early, as a complete one: a plugin that sets it makes the current epoch the last."""

    policy: Any = None
    """The policy being trained. Live: it changes as training goes on."""
    optimizer: Any = None
    """The optimizer; a mapping of names to optimizers where there are several. Live."""
    experience: Any = None
    """The experience buffer of the current epoch. Live."""

    loss_stats: dict[str, float] = field(default_factory=dict)
    """The latest losses and what goes with them, by name."""
    rollout_stats: dict[str, float] = field(default_factory=dict)
    """Statistics of the latest rollouts, by name."""
    eval_scores: dict[str, float] = field(default_factory=dict)
    """The latest evaluation scores, by name."""

    latest_checkpoint_path: Path | None = None
    """The folder of the newest durable checkpoint."""
    latest_checkpoint_uri: str | None = None
    """Where others can fetch the newest uploaded checkpoint."""

    rank: int = 0
    """This process among those of the trainer."""
    world_size: int = 1
    """How many processes the trainer has."""

    shared: Shared = field(default_factory=Shared)
    """What plugins tell each other, by plugin name."""

    def frozen(self) -> TrainerState:
        """A read-only copy for another thread: counters and statistics as they are now.

        The live objects (policy, optimizer, experience) are not in it. Asking for one is an error, since
        reading it beside the training thread would see half of an update.
        """
        view = _FrozenTrainerState.__new__(_FrozenTrainerState)
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name in LIVE_FIELDS:
                name, value = f"_has_{name}", value is not None
            elif isinstance(value, Shared):
                value = value.frozen()
            elif isinstance(value, dict):
                value = FrozenDict(value)
            object.__setattr__(view, name, value)
        return view


LIVE_FIELDS: Final = ("policy", "optimizer", "experience")


class _FrozenTrainerState(TrainerState):
    """What `TrainerState.frozen` gives. Without slots of its own, it can remember which live objects there are."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot set state.{name}: background implementations see a frozen view of the state")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def frozen(self) -> TrainerState:
        return self

    def __repr__(self) -> str:
        shown = (name for name in self.__dataclass_fields__ if name not in LIVE_FIELDS)
        return f"TrainerState.frozen({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _live_field(name: str) -> Any:
    def read(self: TrainerState) -> None:
        if getattr(self, f"_has_{name}"):
            raise LiveObjectError(
                f"state.{name} changes while a background implementation runs: "
                "take what you need of it in an implementation without background=True"
            )

    return property(read)


for _name in LIVE_FIELDS:
    setattr(_FrozenTrainerState, _name, _live_field(_name))
