"""`Experience`: the arrays of one epoch's rollouts, as the union of what the losses ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hookline.plugins.errors import did_you_mean
from hookline.training.errors import ExperienceError
from hookline.training.losses.loss import Field, Loss

__all__ = ["Experience", "union_of_specs"]


def union_of_specs(losses: Sequence[Loss]) -> tuple[dict[str, Field], dict[str, list[str]]]:
    """All fields that losses ask for, and the losses that ask for each. Two that disagree are an error."""
    union: dict[str, Field] = {}
    askers: dict[str, list[str]] = {}
    for loss in losses:
        for name, field in loss.get_experience_spec().items():
            before = union.get(name, field)
            if not before.agrees_with(field):
                raise ExperienceError(
                    f"losses {askers[name][0]!r} and {loss.name!r} disagree on {name!r} in the experience: "
                    f"{before} and {field}"
                )
            union[name] = Field(
                dtype=before.dtype if field.dtype is None else field.dtype,
                shape=before.shape if field.shape is None else field.shape,
                computed=before.computed or field.computed,
            )
            askers.setdefault(name, []).append(loss.name)
    return union, askers


class Experience:
    """One epoch's rows. Control rollouts lie in a grid of (steps, copies), text in one of (responses,).

    :param losses: whose fields it holds.
    """

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.spec, self._askers = union_of_specs(losses)
        self.grid: tuple[int, ...] = ()
        """The shape that rows are arranged in."""
        self._fields: dict[str, Tensor] = {}

    @property
    def rows(self) -> int:
        return torch.Size(self.grid).numel()

    def fill(self, arrays: Mapping[str, Tensor], grid: tuple[int, ...]) -> None:
        """Begin a new epoch with the arrays that rollouts brought. Those that no loss asked for are left out."""
        self.grid = tuple(grid)
        self._fields = {}
        for name, field in self.spec.items():
            if name in arrays:
                self.store(name, arrays[name])
            elif not field.computed:
                raise ExperienceError(
                    f"{self._who(name)} {name!r} in the experience, which the rollouts do not bring"
                    f"{did_you_mean(name, arrays)}; they bring {', '.join(arrays)}"
                )

    def store(self, name: str, values: Tensor) -> None:
        """Put a field in; its first dimensions are the grid's."""
        field = self.spec.get(name)
        if field is None:
            raise ExperienceError(
                f"{name!r} is in no loss's experience spec{did_you_mean(name, self.spec)}: "
                "the loss that stores it must name it in get_experience_spec"
            )
        depth = len(self.grid)
        row = tuple(values.shape[depth:])
        dtype = str(values.dtype).removeprefix("torch.")
        if tuple(values.shape[:depth]) != self.grid:
            raise ExperienceError(f"{name!r} has shape {tuple(values.shape)}, which does not begin with {self.grid}")
        if not field.agrees_with(Field(dtype, row)):
            raise ExperienceError(
                f"{self._who(name)} {name!r} in the experience as {field}, but it is {Field(dtype, row)}"
            )
        self._fields[name] = values

    def _who(self, name: str) -> str:
        askers = self._askers[name]
        return f"loss {askers[0]!r} needs" if len(askers) == 1 else f"losses {', '.join(map(repr, askers))} need"

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._fields:
            who = self._who(name) if name in self._askers else "a loss needs"
            raise ExperienceError(
                f"{who} {name!r}, which no loss has computed in this epoch; "
                f"the experience has {', '.join(self._fields) or 'nothing'}"
            )
        return self._fields[name]

    def flat(self) -> dict[str, Tensor]:
        """All fields with one dimension in the place of the grid."""
        depth = len(self.grid)
        return {name: values.flatten(0, depth - 1) for name, values in self._fields.items()}

    def minibatches(self, count: int, order: Tensor) -> Iterator[dict[str, Tensor] | None]:
        """The rows in `order` as so many minibatches, as equal as can be; None for one without any row."""
        # Shuffled once, so that each minibatch is a view.
        shuffled = {name: values[order] for name, values in self.flat().items()}
        edges = [len(order) * number // count for number in range(count + 1)]
        for start, end in pairwise(edges):
            yield {name: values[start:end] for name, values in shuffled.items()} if end > start else None
