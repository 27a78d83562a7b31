"""`Experience`: the rows of one epoch's rollouts, with the fields that the losses need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hookline.errors import did_you_mean
from hookline.training.errors import ExperienceError
from hookline.training.losses.loss import Field, Loss
from hookline_hookspecs import Episode, Rollout

__all__ = ["Experience", "join_rollouts", "mean_stats", "union_of_specs"]


COUNTS: Final = ("steps", "episodes", "failed")
"""Statistics of rollouts that are summed."""


def join_rollouts(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    """The joined arrays of an epoch's rollouts, and the grid of their rows.

    Control rollouts, (steps, environments) each, are concatenated along the environments. A text episode is one row,
    with the tokens of all its turns. `weights_version` is the version of the weights that produced each row.
    """
    kinds = {_is_text(rollout) for rollout in rollouts}
    if len(kinds) > 1:
        raise ExperienceError("the rollouts of an epoch mix text and control: use a separate run for each")
    return _join_text(rollouts) if kinds == {True} else _join_control(rollouts)


def _is_text(rollout: Rollout) -> bool:
    return bool(rollout.episodes) and rollout.episodes[0].tokens is not None


def _join_control(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    names = rollouts[0].arrays
    tensors = {name: [_as_tensor(rollout.arrays[name]) for rollout in rollouts] for name in names}
    tensors["weights_version"] = [
        torch.full(rewards.shape, rollout.weights_version)
        for rewards, rollout in zip(tensors["rewards"], rollouts, strict=True)
    ]
    joined = {name: parts[0] if len(parts) == 1 else torch.cat(parts, dim=1) for name, parts in tensors.items()}
    steps, environments = joined["rewards"].shape
    return joined, (steps, environments)


def _join_text(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    """One row for each episode, padded on the right.

    Losses compare log-probabilities over the whole vocabulary at the sampling temperature. An episode records those of
    the truncated distribution (top-k, top-p). Adding `log_mass`, the log of the kept mass, undoes the truncation. Rows
    have a `temperature` if any was sampled at another one than 1.
    """
    episodes = [episode for rollout in rollouts for episode in rollout.episodes]
    # The first token of a row has no log-probability. If it is trained on, the rows start with one padding token.
    lead = int(any(len(episode.mask) and episode.mask[0] for episode in episodes))
    shape = (len(episodes), lead + max(1, *(len(episode.tokens) for episode in episodes)))
    tokens, logprobs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    valid, mask = np.zeros(shape, bool), np.zeros(shape, bool)
    for row, episode in enumerate(episodes):
        own = slice(lead, lead + len(episode.tokens))
        tokens[row, own], valid[row, own], mask[row, own] = episode.tokens, True, episode.mask
        logprobs[row, own] = episode.logprobs if episode.log_mass is None else episode.logprobs + episode.log_mass
        valid[row, 0] |= not len(episode.tokens)  # one that failed at once: attention needs a token
    joined = {
        "tokens": tokens,
        "valid": valid,
        "loss_mask": mask,
        "logprobs": np.ascontiguousarray(logprobs[:, 1:]),  # as from a policy: the first token has none
        "rewards": np.concatenate([rollout.arrays["rewards"] for rollout in rollouts]),
        "groups": _joined_groups(rollouts),
        "weights_version": np.array([_oldest_version(e, r) for r in rollouts for e in r.episodes], np.int64),
    }
    temperature = np.array([episode.temperature for episode in episodes], np.float32)
    if (temperature != 1).any():
        joined["temperature"] = temperature
    return {name: torch.from_numpy(array) for name, array in joined.items()}, (len(episodes),)


def _joined_groups(rollouts: Sequence[Rollout]) -> np.ndarray:
    """The group of each episode, numbered from 0 over all rollouts. An episode without a group is its own group."""
    numbers: dict[tuple[int, int], int] = {}
    groups = []
    for index, rollout in enumerate(rollouts):
        for row, episode in enumerate(rollout.episodes):
            group = -1 - row if episode.group is None else episode.group
            groups.append(numbers.setdefault((index, group), len(numbers)))
    return np.array(groups, np.int64)


def _oldest_version(episode: Episode, rollout: Rollout) -> int:
    """The weights version of the episode's oldest token, which decides how stale the row is."""
    version = rollout.weights_version if episode.weights_version is None else episode.weights_version
    return version if isinstance(version, int) else int(np.min(version))


def _as_tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(np.asarray(array))


def mean_stats(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The statistics of rollouts by name. Counts are summed; others are averaged over the rollouts that have them."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        for name, value in rollout.stats.items():
            found.setdefault(name, []).append(value)
    return {f"rollout/{name}": sum(values) / (1 if name in COUNTS else len(values)) for name, values in found.items()}


def union_of_specs(losses: Sequence[Loss]) -> tuple[dict[str, Field], dict[str, list[str]]]:
    """The union of the losses' specs, and the losses that need each field. Conflicting specs are an error."""
    union: dict[str, Field] = {}
    needed_by: dict[str, list[str]] = {}
    for loss in losses:
        for name, field in loss.get_experience_spec().items():
            before = union.get(name, field)
            if not before.agrees_with(field):
                raise ExperienceError(
                    f"losses {needed_by[name][0]!r} and {loss.name!r} disagree on {name!r} in the experience: "
                    f"{before} and {field}"
                )
            union[name] = Field(
                dtype=before.dtype if field.dtype is None else field.dtype,
                shape=before.shape if field.shape is None else field.shape,
                computed=before.computed or field.computed,
                optional=before.optional and field.optional,
            )
            needed_by.setdefault(name, []).append(loss.name)
    return union, needed_by


class Experience:
    """One epoch's rows, in a grid of (steps, environments) for control and (responses,) for text.

    :param losses: the losses whose fields it holds.
    """

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.spec, self._needed_by = union_of_specs(losses)
        self.grid: tuple[int, ...] = ()
        """The shape of the grid of rows."""
        self.is_stale = False
        """Whether rows were made with older weights than those at the start of the epoch."""
        self._fields: dict[str, Tensor] = {}

    @property
    def rows(self) -> int:
        return torch.Size(self.grid).numel()

    def fill(self, arrays: Mapping[str, Tensor], grid: tuple[int, ...], *, is_stale: bool = False) -> None:
        """Start a new epoch with the arrays of its rollouts. Arrays that no loss needs are left out."""
        self.grid, self.is_stale = tuple(grid), is_stale
        self._fields = {}
        for name, field in self.spec.items():
            if name in arrays:
                self.store(name, arrays[name])
            elif not (field.computed or field.optional):
                raise ExperienceError(
                    f"{self._who(name)} {name!r} in the experience, which the rollouts do not have"
                    f"{did_you_mean(name, arrays)}; they have {', '.join(arrays)}"
                )

    def store(self, name: str, values: Tensor) -> None:
        """Store a field. Its first dimensions must be the grid."""
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
        losses = self._needed_by[name]
        return f"loss {losses[0]!r} needs" if len(losses) == 1 else f"losses {', '.join(map(repr, losses))} need"

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._fields:
            who = self._who(name) if name in self._needed_by else "a loss needs"
            raise ExperienceError(
                f"{who} {name!r}, which no loss has computed in this epoch; "
                f"the experience has {', '.join(self._fields) or 'nothing'}"
            )
        return self._fields[name]

    def flat(self) -> dict[str, Tensor]:
        """All fields with the grid flattened to one dimension."""
        depth = len(self.grid)
        return {name: values.flatten(0, depth - 1) for name, values in self._fields.items()}

    def minibatches(self, count: int, order: Tensor) -> Iterator[dict[str, Tensor] | None]:
        """The rows in `order`, as `count` minibatches of nearly equal size; None for an empty one."""
        # Shuffled once, so that each minibatch is a view.
        shuffled = {name: values[order] for name, values in self.flat().items()}
        edges = [len(order) * number // count for number in range(count + 1)]
        for start, end in pairwise(edges):
            yield {name: values[start:end] for name, values in shuffled.items()} if end > start else None
