"""`sft`: next-token cross-entropy over the tokens of the loss mask."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hookline.training.losses.loss import Field, Loss, SharedLossData, masked_mean, tokens_forward, trained_tokens

__all__ = ["SFT"]


class SFT(Loss):
    def get_experience_spec(self) -> Mapping[str, Field]:
        return {"tokens": Field("int64"), "valid": Field("bool"), "loss_mask": Field("bool")}

    def count(self, batch: Mapping[str, Tensor]) -> Tensor:
        return trained_tokens(batch).sum()

    def run_train(self, shared: SharedLossData) -> Tensor:
        return masked_mean(-tokens_forward(shared), trained_tokens(shared.batch))
