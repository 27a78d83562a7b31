"""`check_verifier`: the checks that every verifier should pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hookline.plugin_manager.construction import make_plugin
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline_hookspecs import Episode, EpisodeBatch, VerificationReport, VerificationResult

__all__ = ["check_verifier"]

NAME: Final = "checked-plugin"
EPISODES: Final = (
    ("Why is the sky blue?", "Air scatters blue light more than red, for it has shorter waves."),
    ("Why is the sky blue?", ""),
    ("", " \n\t"),
    ("2 + 3 =", "5"),
    ("Écris une phrase.", "Voilà une phrase — avec des « guillemets », et 漢字 🙂."),
    ("Repeat.", "again " * 400),
    ("Odd characters", "\x00\ud7ff\u200b" + "()[]{}*+?.^$|\\"),
)
"""Prompts and responses of many kinds."""


def check_verifier(target: Any, **options: Any) -> None:
    """Verify responses of many kinds, in batches and one by one. Raises an AssertionError on a fault.

    :param target: the object of the plugin's entry point: its class, a factory function, or a module.
    :param options: the plugin's options, as in the user's config.
    """
    from hookline.rewards import VerifierPipeline

    with PluginManager() as manager:
        plugin = make_plugin(NAME, target, options, manager)
        manager.register(plugin, NAME, overrides=Overrides(on_error="raise"))
        pipeline = VerifierPipeline(manager)
        assert pipeline.verifiers, "the plugin does not implement verify_episodes"
        together = _verify(pipeline, EPISODES)
        for (prompt, response), report in zip(EPISODES, together, strict=True):
            _check_report(response, report)
            (alone,) = _verify(pipeline, [(prompt, response)])
            assert (alone.result, round(alone.score, 5)) == (report.result, round(report.score, 5)), (
                f"the response {response!r:.40} is {alone.result} ({alone.score:g}) alone, and {report.result} "
                f"({report.score:g}) among others"
            )
        backwards = _verify(pipeline, EPISODES[::-1])[::-1]
        assert [own.result for own in backwards] == [own.result for own in together], (
            "the order of the episodes matters"
        )


def _verify(pipeline: Any, episodes: Sequence[tuple[str, str]]) -> list[VerificationReport]:
    return list(pipeline.verify_episodes(EpisodeBatch([Episode(prompt, response) for prompt, response in episodes])))


def _check_report(response: str, report: VerificationReport) -> None:
    shown = f"the response {response!r:.40}"
    assert isinstance(report.result, VerificationResult), f"{shown} has no result: {report.result!r}"
    assert 0 <= report.score <= 1, f"{shown} has a score of {report.score}, which is not from 0 to 1"
    assert isinstance(report.message, str), f"{shown} has a message that is not text: {report.message!r}"
