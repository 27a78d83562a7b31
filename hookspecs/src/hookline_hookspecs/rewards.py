"""Events of the reward processor: a batch of episodes is scored, verified and filtered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookline_hookspecs.episodes import Episode, EpisodeBatch, VerificationReport
from hookline_hookspecs.markers import hookspec

__all__ = ["on_episodes_filtered", "post_rewards", "pre_rewards", "score_episodes", "verify_episodes"]


@hookspec(scope="worker")
def pre_rewards(batch: EpisodeBatch) -> None:
    """A batch of episodes is about to be rewarded.

    When: before `score_episodes`, once for each batch. With a perplexity model or a reward model, here or elsewhere,
        this is emitted for all batches of a call before the first is scored.
    Emitted by: reward processor.
    Where: every worker process, the thread that processes rewards.
    Args:
        batch: the episodes, without rewards yet.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(kind="collect", scope="worker")
def score_episodes(batch: EpisodeBatch) -> Mapping[str, Sequence[float | None]] | None:
    """Score a batch of episodes with a reward of your own.

    When: once for each batch, in addition to the built-in rewards.
    Emitted by: reward processor.
    Where: every worker process, the thread that processes rewards.
    Args:
        batch: the episodes.
    Returns: one score in 0..1 per episode, by the reward's name; a None among them means not applicable.
    Added: 0.1.
    """


@hookspec(kind="collect", scope="worker")
def verify_episodes(batch: EpisodeBatch) -> Mapping[str, Sequence[VerificationReport | None]] | None:
    """Verify a batch of episodes.

    When: once for each batch, after `score_episodes`, if verification is on.
    Emitted by: reward processor.
    Where: every worker process, the thread that processes rewards.
    Args:
        batch: the episodes.
    Returns: one report per episode, by the verifier's name; a None among them means not applicable.
    Added: 0.1.
    """


@hookspec(scope="worker")
def post_rewards(batch: EpisodeBatch, rewards: Sequence[float]) -> None:
    """A batch of episodes has its rewards.

    When: after all scores have been combined, before filtering.
    Emitted by: reward processor.
    Where: every worker process, the thread that processes rewards.
    Args:
        batch: the episodes, each with its reward.
        rewards: the combined rewards in the order of the episodes.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(scope="worker")
def on_episodes_filtered(batch: EpisodeBatch, accepted: Sequence[Episode], rejected: Sequence[Episode]) -> None:
    """A batch has been divided into accepted and rejected episodes.

    When: after rewards and verification.
    Emitted by: reward processor.
    Where: every worker process, the thread that processes rewards.
    Args:
        batch: all episodes of the batch.
        accepted: those that will be trained on.
        rejected: the others, with the reason in their metadata.
    Returns: ignored.
    Added: 0.1.
    """
