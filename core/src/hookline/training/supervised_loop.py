"""Supervised training: batches of a dataset, gradient steps and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hookline.errors import did_you_mean
from hookline.session import Session
from hookline.training.config import SupervisedConfig
from hookline.training.errors import DatasetError
from hookline.training.experience import union_of_specs
from hookline.training.learner import Learner
from hookline.training.losses.loss import Field
from hookline.training.ranks import Ranks
from hookline_hookspecs import Watch

__all__ = ["Batches", "SupervisedLoop", "collate", "validate"]


class Batches:
    """The batches of a dataset.

    :param dataset: a sequence of examples, each a mapping of names to arrays, tensors or lists of numbers.
    :param batch_size: examples in a batch over all ranks. Each rank gets its share.
    :param spec: the fields that the losses need in an example.
    """

    def __init__(
        self, dataset: Any, batch_size: int, ranks: Ranks, spec: Mapping[str, Field], *, name: str = "dataset"
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DatasetError(f"the {name} is a {type(dataset).__name__}; it needs len() and [], as a list has")
        if len(dataset) == 0:
            raise DatasetError(f"the {name} is empty: it needs at least one example")
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
        """This rank's share of each batch; None if the share is empty.

        :param order: the rng that shuffles the examples; None for the dataset's order.
        :param batches: the number of batches; None for one pass over the dataset.
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
                if field.optional:
                    continue
                raise DatasetError(
                    f"the losses need {name!r} in each example of the {self._name}{did_you_mean(name, batch)}; "
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
    """Stack examples into one tensor per name. Sequences of different lengths are padded on the right.

    With `tokens` the batch also has `valid`, which is False for padding, and `loss_mask`. Examples without a
    `loss_mask` are trained on every token.
    """
    names = examples[0].keys()
    for example in examples:
        if example.keys() != names:
            raise DatasetError(
                f"examples of the {name} have different fields: {', '.join(names)} and {', '.join(example)}"
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


def validate(session: Session, batches: Batches, learner: Learner, *, is_last_step: bool) -> float:
    """The weighted sum of the losses, each the mean over the rows or tokens of all ranks."""
    was_training = learner.policy.training
    learner.policy.eval()
    session.begin_validation(is_last_step=is_last_step)
    totals = torch.zeros(2, len(learner.losses), device=learner.device)
    try:
        for index, batch in enumerate(batches.go_through(None)):
            session.begin_validation_step(index)
            sums_and_counts = learner.validate(batch, session.state)
            totals += sums_and_counts
            session.end_validation_step(index, _weighted(learner, sums_and_counts))
    finally:
        learner.policy.train(was_training)
    average = _weighted(learner, totals)
    session.end_validation(average)
    return average


def _weighted(learner: Learner, sums_and_counts: Tensor) -> float:
    means = (sums_and_counts[0] / sums_and_counts[1].clamp(min=1)).tolist()
    return float(sum(loss.weight * mean for loss, mean in zip(learner.losses, means, strict=True)))


class SupervisedLoop:
    """Takes one gradient step for each batch of each epoch.

    :param order: the rng that shuffles the examples. Its state is the same on all ranks.
    """

    def __init__(
        self,
        config: SupervisedConfig,
        learner: Learner,
        dataset: Any,
        validation_dataset: Any | None,
        order: np.random.Generator,
    ) -> None:
        spec, _ = union_of_specs(learner.losses)
        self._config = config
        self._learner = learner
        self._order = order
        self._batches = Batches(dataset, config.batch_size, learner.ranks, spec)
        self._validation = (
            None
            if validation_dataset is None
            else Batches(validation_dataset, config.batch_size, learner.ranks, spec, name="validation dataset")
        )

    @property
    def steps_per_epoch(self) -> int:
        return len(self._batches)

    def epochs(self, session: Session) -> Iterator[int]:
        """Train. Yields each epoch after its work and before `on_epoch_end`."""
        state, every = session.state, self._config.validate_every
        validations = Watch(every, state.step)
        if self._config.validate_at_start and state.step == 0:
            self._validate(session, is_last_step=False)
        for epoch in session.epochs(until=lambda: self._learner.ranks.any(session.should_stop())):
            session.begin_train_phase()
            for batch in self._batches.go_through(self._order if self._config.shuffle else None):
                session.begin_step()
                session.end_step(self._learner.step(batch, state))
                self._validate_if_due(session, validations)
            session.end_train_phase()
            yield epoch

    def _validate_if_due(self, session: Session, validations: Watch) -> None:
        state = session.state
        is_due = validations.is_due(state.step)
        is_last_step = state.step == state.total_steps
        if is_due or is_last_step:
            self._validate(session, is_last_step=is_last_step)

    def _validate(self, session: Session, *, is_last_step: bool) -> None:
        if self._validation is not None:
            validate(session, self._validation, self._learner, is_last_step=is_last_step)

    def state_dict(self) -> dict[str, Any]:
        """Empty: the next epoch depends only on the rng that shuffles, which the trainer saves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state

    def stop(self) -> None:
        """Nothing to close."""
