"""`sft`: next-token cross-entropy, over the tokens that the data says to learn."""

from __future__ import annotations

from collections.abc import Mapping

from hookline.training.losses.forwards import tokens_forward
from hookline.training.losses.loss import Field, Loss, LossTerm
from hookline.training.losses.shared import SharedLossData

__all__ = ["SFT"]


class SFT(Loss):
    def get_experience_spec(self) -> Mapping[str, Field]:
        return {"tokens": Field("int64"), "valid": Field("bool"), "loss_mask": Field("bool")}

    def run_train(self, shared: SharedLossData) -> LossTerm:
        new = tokens_forward(shared)
        return self.mean(-new.logprobs, new.mask)
