"""What goes wrong while episodes are rewarded. Every message names the reward or verifier, and the episode."""

from __future__ import annotations

from hookline.plugins.errors import HooklineError

__all__ = ["RewardError"]


class RewardError(HooklineError):
    """A reward or a verdict could not be had, or is not one."""
