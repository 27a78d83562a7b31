"""Pipelines: how verifiers are found, configured and combined. The verifiers here are a third party's."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline import PluginManager
from hookline.plugin_manager import ConfigError
from hookline.rewards import (
    RewardError,
    TextVerifier,
    VerificationReport,
    VerificationResult,
    VerifierPipeline,
    create_custom_verifier_pipeline,
    create_default_verifier_pipeline,
)
from hookline_hookspecs import EpisodeBatch, hookimpl

Install = Callable[[str, str, dict[str, str]], None]

SHOUTING = """
from dataclasses import dataclass
from hookline.rewards import TextVerifier, VerificationReport, VerificationResult

@dataclass
class Options:
    limit: float = 0.5

class Shouting(TextVerifier):
    name = "shouting"

    def __init__(self, options: Options):
        self.limit = options.limit

    def verify(self, prompt, response):
        share = sum(map(str.isupper, response)) / max(1, len(response))
        loud = share > self.limit
        result = VerificationResult.FAIL if loud else VerificationResult.PASS
        return VerificationReport(result, 1.0 - share, {"share": share}, f"{share:.0%} in capitals")
"""


@pytest.fixture(autouse=True)
def _only_what_the_test_installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shipped verifiers may be installed here or not: the tests speak of their own."""
    from hookline.rewards import pipeline

    everything = pipeline.find_plugins
    monkeypatch.setattr(
        pipeline,
        "find_plugins",
        lambda settings: [plugin for plugin in everything(settings) if plugin.distribution != "hookline-verifiers"],
    )
    monkeypatch.chdir(tmp_path)


class Fixed(TextVerifier):
    """Says the same of every response."""

    def __init__(self, score: float | None, result: VerificationResult, name: str = "fixed", **standing: Any) -> None:
        self.score, self.result, self.name = score, result, name
        self.__dict__.update(standing)

    def verify(self, prompt: str, response: str) -> VerificationReport:
        if self.score is None:
            return None  # type: ignore[return-value]
        return VerificationReport(self.result, self.score, {"response": response}, f"{self.name} says so")


PASS, WARNING, FAIL = VerificationResult.PASS, VerificationResult.WARNING, VerificationResult.FAIL


def test_a_third_partys_verifier_is_found_by_its_entry_point(install: Install) -> None:
    install("shouting", SHOUTING, {"verify-shouting": "shouting:Shouting"})
    pipeline = create_custom_verifier_pipeline([{"type": "shouting", "limit": 0.1}])
    report = pipeline.verify("p", "HELLO there")
    assert report.details["shouting"]["result"] is FAIL
    assert report.score == pytest.approx(1 - 5 / 11)
    assert report.message == "shouting: 45% in capitals"
    assert report.details["shouting"]["details"] == {"share": pytest.approx(5 / 11)}


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("HOOKLINE_DISABLE", "verify-shouting", "by HOOKLINE_DISABLE"),
        ("HOOKLINE_ALLOW", "checkpoint", "not allowed by HOOKLINE_ALLOW"),
    ],
)
def test_a_verifier_that_is_disabled_or_not_allowed_is_an_error_and_is_not_imported(
    install: Install, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    install("shouting", SHOUTING, {"verify-shouting": "shouting:Shouting"})
    monkeypatch.setenv(variable, value)
    message = rf"verifier 1: plugin 'verify-shouting' \(shouting 1.0\) is disabled, {reason}"
    with pytest.raises(RewardError, match=message):
        create_custom_verifier_pipeline([Fixed(1.0, PASS), {"type": "shouting"}])
    assert "shouting" not in sys.modules


def test_two_distributions_with_one_verifier_are_an_error_and_neither_is_imported(install: Install) -> None:
    install("shouting", SHOUTING, {"verify-shouting": "shouting:Shouting"})
    install("shouting-too", SHOUTING, {"verify-shouting": "shouting_too:Shouting"})
    with pytest.raises(RewardError, match=r"two plugins have this name, 'verify-shouting' \(shouting 1.0\) and .*too"):
        create_custom_verifier_pipeline([{"type": "shouting"}])
    assert "shouting" not in sys.modules


def test_a_type_may_be_the_whole_name_of_an_entry_point(install: Install) -> None:
    install("shouting", SHOUTING, {"loudness": "shouting:Shouting"})
    assert create_custom_verifier_pipeline([{"type": "loudness"}]).verify("p", "quiet").result is PASS


def test_the_default_pipeline_has_every_installed_verifier_that_is_not_disabled(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("shouting", SHOUTING, {"verify-shouting": "shouting:Shouting", "verify-again": "shouting:Shouting"})
    assert sorted(create_default_verifier_pipeline().verifiers) == ["verify-again", "verify-shouting"]
    monkeypatch.setenv("HOOKLINE_DISABLE", "verify-again")
    monkeypatch.setenv("HOOKLINE_OPTIONS", "verify-shouting.limit=0.01")
    pipeline = create_default_verifier_pipeline()
    assert pipeline.verifiers == ["verify-shouting"]
    assert pipeline.verify("p", "Hello there").details["shouting"]["result"] is FAIL


def test_settings_of_other_plugins_are_none_of_its_business(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("shouting", SHOUTING, {"verify-shouting": "shouting:Shouting"})
    monkeypatch.setenv("HOOKLINE_OPTIONS", "checkpoint.every=5")
    assert create_default_verifier_pipeline().verifiers == ["verify-shouting"]


def test_without_an_installed_verifier_the_error_says_what_to_install() -> None:
    for make in (create_default_verifier_pipeline, lambda: create_custom_verifier_pipeline([{"type": "length"}])):
        with pytest.raises(RewardError, match=r"no verifier is installed.*pip install hookline-verifiers"):
            make()


def test_when_all_are_disabled_the_error_says_which_and_where(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("shouting", SHOUTING, {"verify-shouting": "shouting:Shouting"})
    monkeypatch.setenv("HOOKLINE_DISABLE", "verify-shouting")
    with pytest.raises(RewardError, match=r"verify-shouting is disabled \(by HOOKLINE_DISABLE\)"):
        create_default_verifier_pipeline()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"type": "shoutin"}, RewardError, r"verifier 0: no verifier of type 'shoutin' is installed \(did you mean"),
        ({"limit": 0.5}, ConfigError, "verifier 0: must be a dictionary with a 'type', or a TextVerifier"),
        (5, ConfigError, "verifier 0: must be a dictionary with a 'type', or a TextVerifier, got 5"),
        ({"type": "shouting", "limt": 1}, ConfigError, r"verifier 0 \(shouting\): limt: unknown key 'limt' \(did you"),
        ({"type": "shouting", "limit": "x"}, ConfigError, r"verifier 0 \(shouting\): limit: .*, got 'x'"),
        ({"type": "broken"}, RewardError, r"verifier 0: plugin 'verify-broken' \(shouting 1.0\) cannot be used"),
    ],
)
def test_a_bad_custom_config_is_named(install: Install, config: Any, error: type[Exception], message: str) -> None:
    entry_points = {"verify-shouting": "shouting:Shouting", "verify-broken": "shouting:Missing"}
    install("shouting", SHOUTING, entry_points)
    with pytest.raises(error, match=message):
        create_custom_verifier_pipeline([config])


def test_an_empty_pipeline_is_an_error() -> None:
    with pytest.raises(RewardError, match="the pipeline has no verifier: give at least one"):
        create_custom_verifier_pipeline([])


def test_scores_are_combined_by_weight() -> None:
    pipeline = create_custom_verifier_pipeline(
        [Fixed(1.0, PASS, "a", weight=3.0), Fixed(0.5, WARNING, "b"), Fixed(0.0, FAIL, "none", weight=0.0)]
    )
    report = pipeline.verify("p", "r")
    assert report.score == pytest.approx(3.5 / 4)
    assert report.result is WARNING
    assert report.message == "b: b says so; none: none says so"


@pytest.mark.parametrize("results", list(itertools.product([PASS, WARNING, FAIL], repeat=2)))
def test_the_combined_result_is_the_worst_of_all_whatever_the_scores(results: tuple[VerificationResult, ...]) -> None:
    verifiers = [Fixed(score, result, str(score)) for score, result in zip((0.2, 0.9), results, strict=True)]
    worst = FAIL if FAIL in results else WARNING if WARNING in results else PASS
    assert create_custom_verifier_pipeline(verifiers).verify("p", "r").result is worst


@pytest.mark.parametrize("result", [PASS, WARNING, FAIL])
def test_the_result_of_the_only_verifier_is_that_of_the_pipeline(result: VerificationResult) -> None:
    assert create_custom_verifier_pipeline([Fixed(0.6, result)]).verify("p", "r").result is result


def test_one_fail_fails_the_whole_however_little_it_weighs() -> None:
    report = create_custom_verifier_pipeline([Fixed(1.0, PASS, "a", weight=99.0), Fixed(0.0, FAIL, "b")]).verify(
        "p", "r"
    )
    assert report.score == pytest.approx(0.99)
    assert report.result is FAIL


def test_a_verifier_that_does_not_apply_is_left_out() -> None:
    pipeline = create_custom_verifier_pipeline([Fixed(None, PASS, "a"), Fixed(0.8, PASS, "b")])
    report = pipeline.verify("p", "r")
    assert report.score == pytest.approx(0.8)
    assert report.message == "passed by b"
    assert report.details["a"]["result"] is None


def test_where_no_verifier_applies_nothing_is_made_up() -> None:
    report = create_custom_verifier_pipeline([Fixed(None, PASS)]).verify("p", "r")
    assert math.isnan(report.score)
    assert report.result is FAIL
    assert report.message == "no verifier applies"


def test_two_of_a_kind_go_by_their_plugins_names() -> None:
    pipeline = create_custom_verifier_pipeline([Fixed(1.0, PASS, "same"), Fixed(0.5, WARNING, "same")])
    assert list(pipeline.verify("p", "r").details) == ["same", "same-2"]


def test_reports_are_in_the_order_of_the_responses() -> None:
    reports = create_custom_verifier_pipeline([Fixed(1.0, PASS)]).verify_batch(["p"] * 3, ["a", "b", "c"])
    assert [report.details["fixed"]["details"]["response"] for report in reports] == ["a", "b", "c"]
    assert len(reports) == 3
    assert reports[-1].details["fixed"]["details"]["response"] == "c"
    assert [report.score for report in reports[:2]] == [1.0, 1.0]
    with pytest.raises(IndexError):
        reports[3]


def test_prompts_and_responses_must_be_as_many() -> None:
    with pytest.raises(RewardError, match="there are 1 prompts for 2 responses"):
        create_custom_verifier_pipeline([Fixed(1.0, PASS)]).verify_batch(["p"], ["a", "b"])


def test_details_become_plain_data_when_copied_pickled_or_written() -> None:
    details = create_custom_verifier_pipeline([Fixed(1.0, PASS)]).verify("p", "r").details
    plain = {"fixed": {"result": "pass", "score": 1.0, "message": "fixed says so", "details": {"response": "r"}}}
    for copied in (copy.deepcopy(details), pickle.loads(pickle.dumps(details)), json.loads(json.dumps(dict(details)))):
        assert type(copied) is dict
        assert copied == plain


class Failing(TextVerifier):
    def verify(self, prompt: str, response: str) -> VerificationReport:
        if response == "bad":
            raise ValueError("cannot read it")
        return VerificationReport()


def test_a_verifier_that_fails_is_named_with_the_episode() -> None:
    with pytest.raises(RewardError, match=r"verifier 'Failing' failed on episode 1: ValueError: cannot read it"):
        create_custom_verifier_pipeline([Failing()]).verify_batch(["p", "p"], ["good", "bad"])


class Returning:
    def __init__(self, result: Any, **standing: Any) -> None:
        self.result = result
        self.__dict__.update(standing)

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            [],
            "plugin 'odd': verify_episodes must return a dictionary with the names of its rewards or verifiers, got list",
        ),
        ({"own": []}, "verifier 'own' of plugin 'odd' returned 0 reports for 1 episodes"),
        ({"own": 5}, "verifier 'own' of plugin 'odd' must return one report for each episode, got int"),
        ({"own": [0.5]}, "verifier 'own' of plugin 'odd', episode 0: must be a VerificationReport, or None"),
        ({"own": [VerificationReport(score=1.5)]}, r"episode 0: the score must be a number in 0\.\.1, got 1\.5"),
        ({"own": [VerificationReport(score=math.inf)]}, r"episode 0: the score must be a number in 0\.\.1, got inf"),
        (
            {"own": [VerificationReport(score=10**5000)]},
            r"the score must be a number in 0\.\.1, got a value of type int that cannot",
        ),
        ({"own": [VerificationReport(score=math.nan)]}, r"episode 0: the score must be a number in 0\.\.1, got nan"),
        (
            {"own": [VerificationReport(result="good")]},
            "episode 0: the result must be a VerificationResult, got 'good'",
        ),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_report_names_the_verifier_and_the_episode(
    hookline_manager: PluginManager, result: Any, message: str
) -> None:
    hookline_manager.register(Returning(result), "odd")
    with pytest.raises(RewardError, match=message):
        VerifierPipeline(hookline_manager).verify("p", "r")


def test_a_weight_that_is_none_is_named(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Returning({"own": [VerificationReport()]}, weight=-1.0), "odd")
    with pytest.raises(RewardError, match=r"plugin 'odd': its weight must be a number of at least 0, got -1.0"):
        VerifierPipeline(hookline_manager).verify("p", "r")


def test_a_failing_verifier_plugin_is_an_error_though_its_policy_is_to_warn(hookline_manager: PluginManager) -> None:
    class Breaking:
        @hookimpl
        def verify_episodes(self) -> Any:
            raise ValueError("no model")

    hookline_manager.register(Breaking(), "breaking")
    with pytest.raises(RewardError, match="plugin 'breaking' failed in verify_episodes: ValueError: no model"):
        VerifierPipeline(hookline_manager).verify("p", "r")


def test_a_manager_without_verifiers_says_what_to_install(hookline_manager: PluginManager) -> None:
    with pytest.raises(RewardError, match="there is no verifier: pip install hookline-verifiers"):
        VerifierPipeline(hookline_manager).verify("p", "r")
