"""`TrainerState`: the state of a run, which every training event carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

__all__ = ["FrozenDict", "LiveObjectError", "Shared", "TrainerState"]


class LiveObjectError(RuntimeError):
    """A background implementation read an object that the training thread keeps changing."""


class FrozenDict(dict[str, Any]):
    """A read-only dictionary. A subclass of `dict`, so that `json` and `isinstance` accept it."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this is a frozen view of the run's state: it cannot be changed")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class Shared(dict[str, dict[str, Any]]):
    """A dictionary of values per plugin: `state.shared["checkpoint"]["latest"]`.

    A plugin writes under its own name and may read under any. An unknown name gives an empty dictionary. The session
    itself offers `shared["hookline"]["failures"]()`: the failures of plugins so far, on any thread.
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
    """The state of the run. The trainer changes it. Plugins read it, and write to `shared` under their own name.

    A loop of your own sets the fields that it has. Nothing here needs Hookline's trainer.
    """

    run_id: str = ""
    """The name of the run, in tables and in messages to other systems."""
    run_dir: Path | None = None
    """The run's folder, or None for a run that writes no files."""
    config: dict[str, Any] = field(default_factory=dict)
    """The run's config as JSON data, without secrets. It is written to `config.json` in the run's folder."""
    resume: bool = False
    """Whether the run should resume from the newest checkpoint in its folder."""
    host: str | None = None
    """The library whose trainer owns the loop and resumes it from its own checkpoints, such as "transformers"."""

    epoch: int = 0
    """The current epoch, 0-based."""
    step: int = 0
    """Gradient steps since the start of the run."""
    agent_step: int = 0
    """Environment steps or generated tokens since the start of the run."""
    total_epochs: int | None = None
    """The planned number of epochs, None if open-ended."""
    total_steps: int | None = None
    """The planned number of gradient steps, None if open-ended."""
    stop_reason: str | None = None
    """A plugin sets it to stop the run early. The current epoch is then the last, and the run counts as complete."""

    policy: Any = None
    """The policy being trained. Live: it changes as training goes on."""
    optimizer: Any = None
    """The optimizer; a mapping of names to optimizers where there are several. Live."""
    experience: Any = None
    """The experience buffer of the current epoch. Live."""

    loss_stats: dict[str, float] = field(default_factory=dict)
    """The latest losses and related statistics, by name."""
    rollout_stats: dict[str, float] = field(default_factory=dict)
    """Statistics of the latest rollouts, by name."""
    eval_scores: dict[str, float] = field(default_factory=dict)
    """The latest evaluation scores, by name."""

    latest_checkpoint_path: Path | None = None
    """The folder of the newest durable checkpoint."""
    latest_checkpoint_uri: str | None = None
    """The address of the newest uploaded checkpoint."""

    rank: int = 0
    """The rank of this process."""
    world_size: int = 1
    """The number of ranks."""

    shared: Shared = field(default_factory=Shared)
    """Values that plugins share with each other, by plugin name."""

    def frozen(self) -> TrainerState:
        """A read-only copy of counters and statistics, for another thread.

        Reading one of its live objects (policy, optimizer, experience) is an error, since the training thread may be in
        the middle of an update.
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
    """What `TrainerState.frozen` returns. It has no slots, so that it can store which live objects exist."""

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
                "read what you need from it in an implementation without background=True"
            )

    return property(read)


for _name in LIVE_FIELDS:
    setattr(_FrozenTrainerState, _name, _live_field(_name))
