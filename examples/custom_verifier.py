"""A verifier of your own, in addition to the installed ones: responses must not contain a phone number.

    python examples/custom_verifier.py

In a distribution, the entry point `verify-privacy = "my_package:PrivacyVerifier"` adds it to every run.
`-p no:verify-privacy` disables it.
"""

import re

from hookline import PluginManager
from hookline.rewards import (
    IntegratedRewardConfig,
    RewardConfig,
    TextVerifier,
    VerificationReport,
    VerificationResult,
    create_integrated_reward_system,
)

PHONE_NUMBER = re.compile(r"\+?\d[\d \-/]{7,}\d")

EPISODES = [
    {"prompt": "How do I reach support?", "response": "Write to the address on our page, we answer within a day."},
    {"prompt": "How do I reach support?", "response": "Call Jane at +1 555 0100 234, she is at home in the evening."},
]


class PrivacyVerifier(TextVerifier):
    """FAIL for a response with a phone number."""

    name = "privacy"

    def verify(self, prompt: str, response: str) -> VerificationReport:
        found = PHONE_NUMBER.findall(response)
        if not found:
            return VerificationReport(message="no phone number")
        return VerificationReport(
            VerificationResult.FAIL, 0.0, details={"numbers": len(found)}, message="gives away a phone number"
        )


def main() -> None:
    plugins = PluginManager()
    plugins.register(PrivacyVerifier(), "verify-privacy")
    config = IntegratedRewardConfig(RewardConfig(target_length=12), strict_filtering=True)
    with create_integrated_reward_system(config, plugins) as system:
        _, accepted, rejected = system.process_episodes(EPISODES)
    for verdict, episodes in (("accepted", accepted), ("rejected", rejected)):
        for episode in episodes:
            print(f"{verdict}: {episode['response']}")
            print(f"    {episode['verification_message'] or 'passed'}")


if __name__ == "__main__":
    main()
