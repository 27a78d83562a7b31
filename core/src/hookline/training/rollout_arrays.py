"""From rollouts, as plain arrays, to the tensors of an experience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookline.training.errors import ExperienceError
from hookline_hookspecs import Rollout

__all__ = ["join_rollouts", "mean_stats"]


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
