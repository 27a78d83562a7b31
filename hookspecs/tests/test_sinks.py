from pathlib import Path

import pytest

from hookline_hookspecs import Episode, Turn
from hookline_hookspecs.sinks import Report, Run, Sample, Samples, Sink, flatten, join_reports


def test_few_reports_are_passed_as_they_are() -> None:
    reports = [Report(step, 0, {"loss": float(step)}, step / 50 + 0.001) for step in range(25)]
    assert list(join_reports(reports)) == reports
    assert list(join_reports([])) == []


@pytest.mark.parametrize("count", [5, 26, 100, 101, 4999])
def test_of_many_reports_neighbours_are_joined_with_the_last_value_of_each_metric(count: int) -> None:
    reports = [Report(step, 0, {"loss": float(step), f"only {step}": 1.0}, step / count) for step in range(count)]
    joined = list(join_reports(reports, per_second=4))
    assert len(joined) == 4
    assert joined[-1][:2] == (count - 1, 0)
    assert {name for report in joined for name in report.numbers} == {"loss", *(f"only {s}" for s in range(count))}
    assert all(report.numbers["loss"] == report.step == round(report.time * count) for report in joined)


def test_a_nested_config_is_one_dictionary() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2, {"e": 3}]}, "f": None, "g": {}}) == {
        "a.b.c": 1,
        "a.d": [2, {"e": 3}],
        "f": None,
        "g": {},
    }


def test_a_sample_has_the_conversation_its_reward_and_verdict() -> None:
    turns = [Turn("system", "Add."), Turn("user", "2 + 3 ="), Turn("assistant", "5")]
    episode = Episode(turns=turns, reward=1, metadata={"verification_result": "pass"})
    assert Sample.of(episode) == Sample((("system", "Add."), ("user", "2 + 3 ="), ("assistant", "5")), 1.0, "pass")
    assert Sample.of(Episode("2 + 3 =", "5")) == Sample((("user", "2 + 3 ="), ("assistant", "5")), None, "")


def test_text_that_is_markdown_itself_stays_in_its_block() -> None:
    shown = Sample((("assistant", "```\n# 5\n```"),), 0.5, "fail").markdown
    assert shown == "**assistant**\n\n````\n```\n# 5\n```\n````\n\nreward 0.5, fail"


def test_samples_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "planted-in-environment")
    samples = Samples(1, None, (Sample((("user", "it is planted-in-environment"),)),))
    assert samples.redacted().episodes[0].messages == (("user", "it is ********"),)


def test_a_trackers_id_is_found_by_the_run_that_resumes(tmp_path: Path) -> None:
    first = Run(tmp_path / "run")
    assert Run(tmp_path / "run", resume=True).earlier_id("wandb") is None
    first.keep_id("wandb", "abc")
    assert first.earlier_id("wandb") is None
    resumed = Run(tmp_path / "run", resume=True)
    assert resumed.earlier_id("wandb") == "abc"
    assert resumed.earlier_id("mlflow") is None


def test_only_write_must_be_there() -> None:
    sink = Sink()
    sink.write_samples(Samples(1, None, ()))
    sink.close()
    with pytest.raises(NotImplementedError):
        sink.write([])
