import json
import re
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.rewards import IntegratedRewardConfig, IntegratedRewardSystem
from hookline.session import open_session
from hookline_hookspecs import (
    Episode,
    EpisodeBatch,
    HookContext,
    Rollout,
    TrainerState,
    Turn,
    VerificationReport,
    VerificationResult,
    hookimpl,
)
from hookline_hookspecs.redaction import remember_secrets
from hookline_metrics.episodes import EPISODES, MAX_CHARACTERS, EpisodeLog, read_episodes
from hookline_metrics.failures import FAILURES, read_failures
from hookline_metrics.report.transcripts import transcripts

Begin = Callable[..., tuple[PluginManager, TrainerState]]


@pytest.fixture
def begin(with_metrics: Callable[..., PluginManager], hookline_state: Callable[..., TrainerState]) -> Begin:
    """Begins a run in the test's folder."""

    def start(**options: Any) -> tuple[PluginManager, TrainerState]:
        manager, state = with_metrics(**options), hookline_state(step=7, epoch=2)
        manager.emit.on_new_training_run(state=state)
        manager.emit.pre_training(state=state, report_data={})
        manager.emit.on_epoch_start(state=state)
        return manager, state

    return start


def roll_out(manager: PluginManager, episodes: list[Episode]) -> None:
    context = HookContext(step=1, lesson_id="sums")
    manager.emit.on_rollout_start(context=context)
    manager.emit.on_rollout_end(context=context, rollout=Rollout("sums", episodes=episodes))


def end(manager: PluginManager, state: TrainerState) -> None:
    manager.emit.on_training_complete(state=state)
    manager.drain()


def written(*episodes: Episode, limit: int = 64, folder: Path) -> list[dict[str, Any]]:
    log = EpisodeLog(limit)
    log.hold(1, 0, None, episodes)
    log.release()
    log.write(folder)
    return read_episodes(folder)


def test_episodes_of_a_rollout_are_written_with_their_conversation_and_reward(begin: Begin, tmp_path: Path) -> None:
    manager, state = begin()
    turns = (Turn("system", "Be brief."), Turn("user", "1+1="), Turn("assistant", "2"), Turn("tool", "right"))
    roll_out(manager, [Episode(turns=turns, reference="2", reward=1.0), Episode("2+2=", "5", reward=0.0)])
    end(manager, state)
    newest, first = read_episodes(tmp_path)
    assert first["turns"] == [{"role": turn.role, "text": turn.text} for turn in turns]
    assert (first["reference"], first["reward"], first["lesson"], first["step"]) == ("2", 1.0, "sums", 7)
    assert newest["turns"] == [{"role": "user", "text": "2+2="}, {"role": "assistant", "text": "5"}]
    assert (first["epoch"], first["accepted"], first["verdicts"]) == (2, None, {})


def test_a_conversation_that_was_stopped_or_failed_says_why_in_the_file_and_on_the_page(tmp_path: Path) -> None:
    turns = (Turn("user", "Guess."), Turn("assistant", "5"), Turn("tool", "<less>"))
    failed = Episode(turns=turns, metadata={"failure": "raised ValueError: <no>"})
    written(Episode(turns=turns, reward=0.0, metadata={"stop_reason": "max_turns"}), failed, folder=tmp_path)
    endings = ["failed: the environment raised ValueError: <no>", "stopped: max_turns"]
    assert [own["ending"] for own in read_episodes(tmp_path)] == endings
    for page, ending in zip(transcripts(tmp_path), endings, strict=True):
        said = [unescape(own) for own in re.findall(r"<h3>(\w+)</h3><pre>(.*?)</pre>", page) for own in own]
        assert said == ["user", "Guess.", "assistant", "5", "tool", "<less>"]
        assert f">{escape(ending)}</p>" in page


class Verifier:
    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> dict[str, list[VerificationReport | None]]:
        return {
            "manners": [
                VerificationReport(VerificationResult.FAIL, 0.1, {}, "it is rude") if "fool" in own.response else None
                for own in batch
            ]
        }


def test_verdicts_that_come_after_the_rollout_are_written_too(begin: Begin, tmp_path: Path) -> None:
    manager, state = begin()
    manager.register(Verifier())
    episodes = [Episode("Who?", "You fool", reward=0.2), Episode("Who?", "Me", reward=0.9)]
    with IntegratedRewardSystem(IntegratedRewardConfig(strict_filtering=False), manager) as system:
        roll_out(manager, episodes)
        system.process_rollout(Rollout("sums", episodes=episodes))
        manager.emit.on_train_phase_start(state=state)
        end(manager, state)
    polite, rude = read_episodes(tmp_path)
    assert rude["verdicts"] == {"manners": {"result": "fail", "score": 0.1, "message": "it is rude"}}
    assert polite["verdicts"] == {}
    assert {rude["accepted"], polite["accepted"]} <= {True, False}
    assert (rude["reason"] == "") is rude["accepted"]
    assert rude["reward"] == pytest.approx(episodes[0].metadata["reward"])


def test_a_loop_that_only_filters_episodes_has_them_written(begin: Begin, tmp_path: Path) -> None:
    manager, state = begin()
    batch = EpisodeBatch([Episode("1+1=", "2")], lesson_id="mine")
    manager.emit.on_episodes_filtered(batch=batch, accepted=batch.episodes, rejected=[])
    end(manager, state)
    assert [own["lesson"] for own in read_episodes(tmp_path)] == ["mine"]


def test_a_sample_is_spread_over_its_rollout_and_the_lessons_next_rollout_a_moment_later_is_left_out(
    tmp_path: Path,
) -> None:
    log = EpisodeLog(64)
    for lesson, start in (("sums", 0), ("sums", 100), ("products", 200)):
        log.hold(1, 0, lesson, [Episode(f"{start + number}", "") for number in range(20)])
        log.release()
    log.write(tmp_path)
    found = [(own["lesson"], own["turns"][0]["text"]) for own in reversed(read_episodes(tmp_path))]
    assert found == [*(("sums", f"{n}") for n in (0, 5, 10, 15)), *(("products", f"{n}") for n in (200, 205, 210, 215))]


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline_metrics.episodes.SAMPLE_SECONDS", 0.0)
    log = EpisodeLog(8)
    for number in range(100):
        turns = [Turn("assistant", f"{number}" + "x" * 1000) for _ in range(500)]
        log.hold(number, 0, None, [Episode(turns=turns, reference="y" * 50_000)])
        log.release()
        log.write(tmp_path)
    assert [own["step"] for own in read_episodes(tmp_path)] == [99, 98, 97, 96, 95, 94, 93, 92]
    assert (tmp_path / EPISODES).stat().st_size < 8 * 3 * MAX_CHARACTERS


def test_the_beginning_and_the_end_of_a_long_text_are_kept(tmp_path: Path) -> None:
    [own] = written(Episode("Why?", "first " + "x" * 100_000 + " last"), folder=tmp_path)
    text = own["turns"][1]["text"]
    assert text.startswith("first ")
    assert text.endswith(" last")
    assert "characters…]" in text


def test_control_episodes_and_runs_that_want_none_leave_no_file(begin: Begin, tmp_path: Path) -> None:
    assert written(Episode(reward=9.0), folder=tmp_path) == []
    assert written(Episode("1+1=", "2"), limit=0, folder=tmp_path) == []
    assert not (tmp_path / EPISODES).exists()


def test_secrets_in_an_episode_are_not_written(tmp_path: Path) -> None:
    remember_secrets({"api_key": "planted-in-options"})
    written(Episode("the key is planted-in-options", "ok", reference="planted-in-options"), folder=tmp_path)
    assert "planted" not in (tmp_path / EPISODES).read_text()


def test_lines_that_are_no_episodes_are_left_out(tmp_path: Path) -> None:
    good = json.dumps({"turns": [], "step": 3})
    (tmp_path / EPISODES).write_bytes(b'{"turns": 3}\n[]\n\xff\xfe\n' + good.encode() + b'\n{"cut sho')
    assert read_episodes(tmp_path) == [{"turns": [], "step": 3}]


class Failing:
    @hookimpl
    def on_epoch_end(self) -> None:
        raise ValueError("no such thing")


@pytest.mark.filterwarnings("ignore")
def test_failures_of_plugins_are_in_the_run_folder(tmp_path: Path) -> None:
    with open_session(tmp_path / "run", total_epochs=2, plugins={"failing": Failing()}) as session:
        for _ in session.epochs():
            pass
    [failure] = read_failures(tmp_path / "run")
    assert failure == {"plugin": "failing", "event": "on_epoch_end", "times": 2, "what": "ValueError: no such thing"}


def test_a_run_in_which_no_plugin_failed_has_no_file_of_failures(tmp_path: Path) -> None:
    with open_session(tmp_path / "run", total_epochs=1) as session:
        for _ in session.epochs():
            pass
    assert not (tmp_path / "run" / FAILURES).exists()
