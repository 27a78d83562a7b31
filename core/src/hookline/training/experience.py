"""`Experience`: the rows of one epoch's rollouts, with the fields that the losses ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookline.errors import did_you_mean
from hookline.training.errors import ExperienceError
from hookline.training.losses.loss import Field, Loss
from hookline_hookspecs import Rollout

__all__ = ["Experience", "join_rollouts", "mean_stats", "union_of_specs"]


def join_rollouts(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    """The arrays of an epoch's rollouts side by side, and the grid that their rows lie in.

    Control rollouts are (steps, copies) each and become more copies; text rollouts are (responses,) and become more
    responses, with `tokens` of prompt and response together.
    """
    kinds = {"prompts" in rollout.arrays for rollout in rollouts}
    if len(kinds) > 1:
        raise ExperienceError("an epoch's rollouts are of text and of control both: give each its own run")
    return _join_text(rollouts) if kinds == {True} else _join_control(rollouts)


def _join_control(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    names = rollouts[0].arrays
    tensors = {name: [_as_tensor(rollout.arrays[name]) for rollout in rollouts] for name in names}
    joined = {name: parts[0] if len(parts) == 1 else torch.cat(parts, dim=1) for name, parts in tensors.items()}
    steps, copies = joined["rewards"].shape
    return joined, (steps, copies)


def _join_text(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    longest_prompt = max(rollout.arrays["prompts"].shape[1] for rollout in rollouts)
    longest_response = max(rollout.arrays["tokens"].shape[1] for rollout in rollouts)
    parts: dict[str, list[Tensor]] = {}
    groups_before = 0
    for rollout in rollouts:
        arrays = _text_arrays(rollout.arrays, longest_prompt, longest_response)
        arrays["groups"] = arrays["groups"] + groups_before
        groups_before = int(arrays["groups"].max()) + 1
        for name, tensor in arrays.items():
            parts.setdefault(name, []).append(tensor)
    joined = {name: torch.cat(tensors) for name, tensors in parts.items()}
    return joined, (len(joined["rewards"]),)


def _text_arrays(arrays: Mapping[str, Any], prompt_length: int, response_length: int) -> dict[str, Tensor]:
    """One sequence for each response: the prompt, padded on the left, then the response, padded on the right."""

    def beside(prompts: Any, responses: Any) -> Tensor:
        left = np.pad(prompts, ((0, 0), (prompt_length - prompts.shape[1], 0)))
        right = np.pad(responses, ((0, 0), (0, response_length - responses.shape[1])))
        return torch.from_numpy(np.concatenate([left, right], axis=1))

    prompts, responses = arrays["prompts"], arrays["tokens"]
    nothing = np.zeros(prompts.shape, bool)
    logprobs = beside(np.zeros(prompts.shape, np.float32), arrays["logprobs"])
    return {
        "tokens": beside(prompts, responses).long(),
        "valid": beside(arrays["prompt_valid"], arrays["valid"]),
        "loss_mask": beside(nothing, arrays["valid"]),
        "logprobs": logprobs[:, 1:].contiguous(),  # as a policy gives them: of each token but the first
        "rewards": _as_tensor(arrays["rewards"]),
        "groups": _as_tensor(arrays["groups"]).long(),
    }


def _as_tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array))


def mean_stats(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The statistics of rollouts by name: counts added up, all else the mean over the rollouts that have it."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.stats.items():
            found.setdefault(name, []).append(value)
    return {
        f"rollout/{name}": sum(values) / (1 if name in ("steps", "episodes") else len(values))
        for name, values in found.items()
    }


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
