"""A dataset's examples on their way to the losses: their order, the share of each rank, and batches of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hookline.plugins.errors import did_you_mean
from hookline.training.errors import DatasetError
from hookline.training.losses.loss import Field
from hookline.training.ranks import Ranks

__all__ = ["Batches", "collate"]


class Batches:
    """Goes through a dataset in batches.

    :param dataset: examples by position, each a mapping of names to arrays, tensors or lists of numbers.
    :param batch_size: examples in a batch over all ranks; each rank takes its share.
    :param spec: what the losses need of an example.
    """

    def __init__(
        self, dataset: Any, batch_size: int, ranks: Ranks, spec: Mapping[str, Field], *, name: str = "dataset"
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DatasetError(f"the {name} is a {type(dataset).__name__}; it needs len() and [], as a list has")
        if len(dataset) == 0:
            raise DatasetError(f"the {name} is empty: there is nothing to learn from")
        if batch_size % ranks.world_size:
            raise DatasetError(
                f"supervised.batch_size {batch_size} cannot be divided among {ranks.world_size} ranks: "
                f"choose a multiple of {ranks.world_size}"
            )
        self._dataset = dataset
        self._batch_size = batch_size
        self._ranks = ranks
        self._spec = spec
        self._name = name

    def __len__(self) -> int:
        return -(-len(self._dataset) // self._batch_size)

    def go_through(
        self, order: np.random.Generator | None, batches: int | None = None
    ) -> Iterator[dict[str, Tensor] | None]:
        """This rank's share of each batch, shuffled by a generator or as they lie; None for a share of nothing.

        :param batches: end after so many.
        """
        count = len(self._dataset)
        indices = np.arange(count) if order is None else order.permutation(count)
        for start in range(0, count, self._batch_size)[:batches]:
            own = indices[start : start + self._batch_size][self._ranks.rank :: self._ranks.world_size]
            yield self._batch(own.tolist()) if len(own) else None

    def _batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        batch = collate([self._example(index) for index in indices], self._name)
        for name, field in self._spec.items():
            if name not in batch:
                raise DatasetError(
                    f"the losses need {name!r} of each example of the {self._name}{did_you_mean(name, batch)}; "
                    f"it has {', '.join(batch)}"
                )
            found = Field(str(batch[name].dtype).removeprefix("torch."), tuple(batch[name].shape[1:]))
            if not field.agrees_with(found):
                raise DatasetError(f"the losses need {name!r} of the {self._name} as {field}, but it is {found}")
        return batch

    def _example(self, index: int) -> Mapping[str, Any]:
        example = self._dataset[index]
        if not isinstance(example, Mapping) or not example:
            raise DatasetError(
                f"example {index} of the {self._name} is {example!r}; an example is a mapping of names to numbers, "
                'such as {"tokens": [5, 9, 2], "loss_mask": [False, True, True]}'
            )
        return example


def collate(examples: Sequence[Mapping[str, Any]], name: str = "dataset") -> dict[str, Tensor]:
    """Examples as one tensor for each name. Sequences of different lengths are padded on the right.

    Where there are `tokens`, `valid` says which are not padding, and `loss_mask`, unless the examples bring one, is the
    same: every token is learnt.
    """
    names = examples[0].keys()
    for example in examples:
        if example.keys() != names:
            raise DatasetError(
                f"examples of the {name} differ in what they hold: {', '.join(names)} and {', '.join(example)}"
            )
    batch: dict[str, Tensor] = {}
    for key in names:
        values = [torch.as_tensor(example[key]) for example in examples]
        same_shape = all(value.shape == values[0].shape for value in values)
        batch[key] = torch.stack(values) if same_shape else pad_sequence(values, batch_first=True)
    if "tokens" in batch:
        batch["tokens"] = batch["tokens"].long()
        lengths = torch.tensor([len(example["tokens"]) for example in examples])
        batch.setdefault("valid", torch.arange(batch["tokens"].shape[1]) < lengths[:, None])
        batch["loss_mask"] = batch.get("loss_mask", batch["valid"]).bool() & batch["valid"]
    return batch
