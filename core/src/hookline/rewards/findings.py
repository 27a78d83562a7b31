"""What is kept with each episode that was rewarded and filtered.

    reward                  the combined reward, NaN where none applies
    accepted                whether it is to be trained on
    rejection_reason        which bounds it missed; empty where it was accepted
    verification_score      the combined score, NaN where no verifier applies
    verification_result     PASS, WARNING or FAIL
    verification_message    what the verifiers object to
    verification_details    result, score, message and details of each verifier, by its name

The last four are there where verification is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookline.rewards.features import Column, Flags
from hookline.rewards.reports import RESULTS
from hookline.rewards.verification import CombinedReports, VerifierDetails
from hookline_hookspecs import EpisodeBatch

__all__ = ["add_findings"]


def add_findings(
    batch: EpisodeBatch,
    given: Sequence[Any],
    rewards: Column,
    reports: CombinedReports | None,
    accepted: Flags,
    reasons: Sequence[str],
) -> list[Any]:
    """Put the findings into the metadata of the batch's records, and return the episodes as they were given.

    A record is returned itself. A dictionary stays as it is: a new one is returned, with the findings among its keys.
    """
    metadata = [record.metadata for record in batch.episodes]
    names = ["reward", "accepted", "rejection_reason"]
    for own, reward, passes, reason in zip(metadata, rewards.tolist(), accepted.tolist(), reasons, strict=True):
        own["reward"] = reward
        own["accepted"] = passes
        own["rejection_reason"] = reason
    if reports is not None:
        names += ["verification_score", "verification_result", "verification_message", "verification_details"]
        results = map(RESULTS.__getitem__, reports.codes.tolist())
        columns = reports.columns
        indices = range(len(metadata))
        judged = zip(metadata, indices, reports.scores.tolist(), results, reports.messages, strict=True)
        for own, index, score, result, message in judged:
            own["verification_score"] = score
            own["verification_result"] = result
            own["verification_message"] = message
            own["verification_details"] = VerifierDetails(columns, index)
    return [
        record if episode is record else {**episode, **{name: record.metadata[name] for name in names}}
        for episode, record in zip(given, batch.episodes, strict=True)
    ]
