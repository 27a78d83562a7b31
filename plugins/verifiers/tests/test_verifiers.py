"""What each verifier says, and how it is configured."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

import hookline_verifiers
from hookline import PluginManager
from hookline.plugin_manager import ConfigError
from hookline.rewards import (
    IntegratedRewardConfig,
    RewardError,
    VerificationResult,
    create_custom_verifier_pipeline,
    create_default_verifier_pipeline,
    process_episodes_with_quality_control,
)
from hookline.testing import check_plugin
from hookline_hookspecs import Episode, EpisodeBatch
from hookline_verifiers import CoherenceVerifier, FactualVerifier, LengthVerifier, ToxicityVerifier
from hookline_verifiers.length import Options as LengthOptions

PASS, WARNING, FAIL = VerificationResult.PASS, VerificationResult.WARNING, VerificationResult.FAIL
FINE = "The cat sat on the mat and looked at the garden. Then it went home for dinner."


def judge(kind: str, response: str, **options: Any) -> dict[str, Any]:
    return dict(create_custom_verifier_pipeline([{"type": kind, **options}]).verify("p", response).details[kind])


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


@pytest.mark.parametrize("verifier", [CoherenceVerifier, FactualVerifier, LengthVerifier, ToxicityVerifier])
def test_each_is_a_good_plugin(verifier: type) -> None:
    check_plugin(verifier)


def test_each_has_an_entry_point_of_its_own() -> None:
    names = {point.name for point in metadata.distribution("hookline-verifiers").entry_points.select(group="hookline")}
    assert names == {"verify-length", "verify-toxicity", "verify-coherence", "verify-factual"}


@pytest.mark.parametrize(
    ("count", "result", "score", "message"),
    [
        (20, PASS, 1.0, "20 words"),
        (200, PASS, 1.0, "200 words"),
        (10, WARNING, 0.5, "10 words, fewer than 20"),
        (9, FAIL, 0.45, "9 words, fewer than 20"),
        (1, FAIL, 0.05, "1 word, fewer than 20"),
        (0, FAIL, 0.0, "0 words, fewer than 20"),
        (250, WARNING, 0.8, "250 words, more than 200"),
        (401, FAIL, 200 / 401, "401 words, more than 200"),
    ],
)
def test_length_is_judged_by_words(count: int, result: VerificationResult, score: float, message: str) -> None:
    found = judge("length", words(count), min_length=20, max_length=200)
    assert (found["result"], found["message"]) == (result, message)
    assert found["score"] == pytest.approx(score)
    assert found["details"] == {"words": count, "min_length": 20, "max_length": 200}


def test_an_answer_may_be_as_short_as_its_episode_says(hookline_manager: PluginManager) -> None:
    hookline_manager.register(LengthVerifier(LengthOptions()))
    batch = EpisodeBatch([Episode(response="42", metadata={"target_length": 1}), Episode(response="42")])
    ((_, reports),) = hookline_manager.emit.verify_episodes(batch=batch).items()
    assert [report.result for report in reports["length"]] == [PASS, FAIL]
    assert [report.message for report in reports["length"]] == ["1 word", "1 word, fewer than 10"]


@pytest.mark.parametrize(
    ("response", "result", "message"),
    [
        (FINE, PASS, "no toxic language"),
        ("You are an IDIOT.", WARNING, "rude language ('idiot')"),
        ("idiot moron", FAIL, "rude language ('idiot', 'moron')"),
        ("Go and kill\n yourself, idiot", FAIL, "severe language ('kill yourself') and rude language ('idiot')"),
        ("a skill, Scunthorpe, a jerky", PASS, "no toxic language"),
        ("Scheiße!", WARNING, "rude language ('scheisse')"),
        ("estu\u0301pido", WARNING, "rude language ('estúpido')"),
        ("你是白痴吗", WARNING, "rude language ('白痴')"),
        ("أنت غبي!", WARNING, "rude language ('غبي')"),
    ],
)
def test_toxicity_says_what_was_found(response: str, result: VerificationResult, message: str) -> None:
    found = judge("toxicity", response)
    assert (found["result"], found["message"]) == (result, message)


def test_word_lists_are_extended_and_shortened_by_config() -> None:
    assert judge("toxicity", "you nincompoop", rude=["Nincompoop"])["result"] is WARNING
    assert judge("toxicity", "a total ne'er-do-well", severe=["total ne'er-do-well"])["result"] is FAIL
    assert judge("toxicity", "a stupid mistake", allow=["Stupid"])["result"] is PASS
    assert judge("factual", "Because it is.", claims=["it is"], allow=["because"])["result"] is WARNING


def test_many_phrases_are_not_all_shown() -> None:
    found = judge("toxicity", "idiot moron stupid loser pathetic jerk scum")
    assert found["message"] == "rude language ('idiot', 'jerk', 'loser', 'moron', 'pathetic' and 2 more)"
    assert len(found["details"]["rude"]) == 7


@pytest.mark.parametrize(
    ("response", "result", "message"),
    [
        (FINE, PASS, "varied words in sentences"),
        ("", FAIL, "no words"),
        ("the the the the the the the the the the", FAIL, "only 10% of the words are different, no sentence ends"),
        (words(100), WARNING, "no sentence ends, 100 words a sentence"),
        (f"Look at {'x' * 30} there.", PASS, "25% of the words are very long"),
    ],
)
def test_coherence_says_what_was_found(response: str, result: VerificationResult, message: str) -> None:
    found = judge("coherence", response, pass_from=0.8)
    assert (found["result"], found["message"]) == (result, message)


@pytest.mark.parametrize(
    ("response", "result", "message"),
    [
        (FINE, PASS, "no sweeping claim without support"),
        ("", FAIL, "no words"),
        ("Everyone knows it.", WARNING, "sweeping claims ('everyone knows') with too little support"),
        (
            "Trust me, everyone knows it.",
            FAIL,
            "sweeping claims ('everyone knows', 'trust me') with too little support",
        ),
        ("Everyone knows it, because, for example, it rains.", PASS, "no sweeping claim without support"),
    ],
)
def test_factual_weighs_claims_against_support(response: str, result: VerificationResult, message: str) -> None:
    found = judge("factual", response)
    assert (found["result"], found["message"]) == (result, message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"type": "length", "min_length": -1},
            r"verifier 0 \(length\): min_length: .*greater than or equal to 0, got -1",
        ),
        ({"type": "length", "min_length": 9, "max_length": 5}, "min_length 9 is above max_length 5"),
        ({"type": "length", "minlength": 5}, r"unknown key 'minlength' \(did you mean 'min_length'\?\)"),
        ({"type": "toxicity", "rude": [" "]}, r"verifier 0 \(toxicity\): rude\.0: .*at least 1 character"),
        ({"type": "coherence", "weight": -1}, r"verifier 0 \(coherence\): weight: "),
        ({"type": "factual", "weight": float("inf")}, r"verifier 0 \(factual\): weight: "),
    ],
)
def test_bad_options_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_custom_verifier_pipeline([config])


def test_one_severe_word_fails_a_response_unless_toxicity_weighs_nothing() -> None:
    insult = FINE + " Kill yourself."
    others = [{"type": "length"}, {"type": "coherence"}, {"type": "factual"}]
    assert create_custom_verifier_pipeline([*others, {"type": "toxicity"}]).verify("p", insult).result is FAIL
    shown = create_custom_verifier_pipeline([*others, {"type": "toxicity", "weight": 0}]).verify("p", insult)
    assert (shown.result, shown.details["toxicity"]["result"]) == (PASS, FAIL)


@pytest.mark.parametrize("response", ["...", "x", ""])
def test_a_response_that_says_nothing_is_rejected_by_strict_filtering_with_default_thresholds(response: str) -> None:
    episode = {"prompt": "Explain gravity.", "response": response}
    _, accepted, rejected, _ = process_episodes_with_quality_control(
        [episode], IntegratedRewardConfig(strict_filtering=True)
    )
    assert accepted == []
    assert "verification fails" in rejected[0]["rejection_reason"]


def test_weights_shift_the_combined_score() -> None:
    pipeline = create_custom_verifier_pipeline([{"type": "length", "weight": 3.0}, {"type": "coherence"}])
    assert pipeline.verify("p", "").score == 0.0
    short = "Yes, it is."
    alone = create_custom_verifier_pipeline([{"type": "length"}]).verify("p", short).score
    assert pipeline.verify("p", short).score == pytest.approx((3 * alone + 1) / 4)


def test_each_is_toggled_and_configured_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLINE_DISABLE", "verify-factual,verify-coherence")
    monkeypatch.setenv("HOOKLINE_OPTIONS", "verify-length.min_length=3")
    pipeline = create_default_verifier_pipeline()
    assert sorted(pipeline.verifiers) == ["verify-length", "verify-toxicity"]
    assert pipeline.verify("p", "just three words").result is PASS


@pytest.mark.parametrize("disabled", ["coherence", "factual", "length", "toxicity"])
def test_one_that_is_disabled_is_not_imported_and_can_be_by_name(disabled: str) -> None:
    code = (
        "import sys; from hookline.rewards import create_default_verifier_pipeline as create; create()\n"
        "print(*(name for name in sys.modules if name.startswith('hookline_verifiers.')))\n"
        f"from hookline_verifiers import {disabled.title()}Verifier as own; print(own.__module__)"
    )
    environ = os.environ | {"HOOKLINE_DISABLE": f"verify-{disabled}"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    imported, by_name = result.stdout.splitlines()
    others = {"column_verifier", "coherence", "factual", "length", "toxicity"} - {disabled}
    assert set(imported.split()) == {f"hookline_verifiers.{other}" for other in others}
    assert by_name == f"hookline_verifiers.{disabled}"


def test_what_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'hookline_verifiers' has no attribute 'GrammarVerifier'"):
        hookline_verifiers.GrammarVerifier  # noqa: B018


def test_a_misspelt_verifier_in_the_settings_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKLINE_DISABLE", "verify-fatual")
    with pytest.raises(
        ConfigError, match=r"no installed plugin is called 'verify-fatual' \(did you mean 'verify-factual'"
    ):
        create_default_verifier_pipeline()


def test_one_response_can_be_judged_by_a_verifier_alone() -> None:
    from hookline_verifiers.toxicity import Options

    report = ToxicityVerifier(Options()).verify("p", "you idiot")
    assert report.result is WARNING
    assert report.details["rude"] == ["idiot"]


def test_an_unknown_type_names_those_that_there_are() -> None:
    with pytest.raises(RewardError, match=r"of type 'lenght' is installed \(did you mean 'length'\?\); installed are"):
        create_custom_verifier_pipeline([{"type": "lenght"}])
