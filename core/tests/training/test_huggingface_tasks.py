"""The tasks `sft` and `grpo`, with tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("jax")
from transformers import PreTrainedTokenizerFast

import hookline
from hookline import PluginManager, hookimpl
from hookline.errors import HooklineError
from hookline.plugin_manager.settings import Settings
from hookline.rollout.text import TextTask
from hookline.testing.tiny_models import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from hookline.training import RolloutConfig, Trainer
from hookline.training.run import rebuild_trainer
from hookline.training.tasks.grpo import GRPOTaskConfig, LessonConfig, grpo
from hookline_hookspecs import EvaluationRequest

ALONE = Settings(allowed={})
# An engine that compiles nothing: these tests are not about engines.
SMALL = "[rollout]\nengine = 'transformers'\nnum_environments = 2\nsamples_per_prompt = 2\nminibatches = 1\nupdate_epochs = 1\n"
ENVIRONMENT = """
from hookline.rollout.text import Limits, TextProblem


class Twice:
    limits = Limits(max_turns=2, max_new_tokens=3)

    def __init__(self, word):
        self.word = word

    def draw(self, rng, *, held_out=False):
        return TextProblem()

    def converse(self, problem):
        yield self.word
        yield "again"
        return 0.25


ready = Twice("sum")
"""
CHECKER = """
def half(problem, response):
    assert problem.metadata == {"level": 1}
    return 0.5
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizer(folder, chat_template=CHAT_TEMPLATE)
    return tiny_model(folder)


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    (tmp_path / "model").symlink_to(model)
    problems = [{"prompt": f"{n}+1=", "answer": str(n + 1), "level": 1} for n in range(40)]
    examples: list[dict[str, Any]] = [{"prompt": own["prompt"], "completion": own["answer"]} for own in problems]
    chat = [{"role": "user", "content": "sum?"}, {"role": "assistant", "content": "12"}]
    examples += [{"messages": chat}, {"text": "A plugin listens."}]
    for name, rows in {"problems": problems, "examples": examples}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "checkers.py").write_text(CHECKER)
    (tmp_path / "twice.py").write_text(ENVIRONMENT)
    return tmp_path


class Validations:
    def __init__(self) -> None:
        self.reports: list[Any] = []

    @hookimpl
    def post_validation(self, report_data: dict[str, Any]) -> None:
        self.reports.append(report_data)


def train(folder: Path, text: str, **changes: Any) -> Trainer:
    (folder / "run.toml").write_text(text)
    return hookline.train(str(folder / "run.toml"), settings=ALONE, epochs=1, **changes)


def test_sft_trains_on_all_forms_of_examples_and_holds_some_out(folder: Path) -> None:
    trainer = train(
        folder,
        'task = "sft"\npolicy = "model"\ndataset = "examples.jsonl"\nvalidation_share = 0.3\nmax_length = 12\n'
        "lora = {r = 2}\n[supervised]\nbatch_size = 8\n",
        hooks=[seen := Validations()],
    )
    assert 0 < trainer.state.step < 6
    assert len(seen.reports) == 1
    assert all("lora_" in name for name in trainer.policy.state_dict())


def test_examples_longer_than_the_policys_context_are_an_error_unless_they_are_cut(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model", "gpt2")
    rows = [{"text": "12+34=46 " * 100}, {"text": "7+5=12"}]
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = 'task = "sft"\npolicy = "model"\ndataset = "examples.jsonl"'
    too_long = "examples.jsonl: 1 of 2 examples are longer than the policy's context of 128 tokens, the longest with"
    with pytest.raises(HooklineError, match=f"{too_long} .* max_length = 128"):
        train(tmp_path, text)
    assert train(tmp_path, f"{text}\nmax_length = 128").state.step == 1


def test_a_token_that_the_policy_does_not_have_is_an_error(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.add_tokens(["<|new|>"])
    tokenizer.save_pretrained(model)
    (tmp_path / "examples.jsonl").write_text(json.dumps({"text": "7+5=<|new|>12"}))
    with pytest.raises(HooklineError, match="makes the token 300 of an example, but the policy has 300 tokens: call"):
        train(tmp_path, 'task = "sft"\npolicy = "model"\ndataset = "examples.jsonl"')


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('task = "grpo"\npolicy = "model"\nlessons = ["addition-1"]\n' + SMALL, "grpo"),
        ('task = "sft"\npolicy = "model"\ndataset = "examples.jsonl"', "sft"),
    ],
)
def test_a_loss_that_a_file_names_is_added_to_the_tasks_own(text: str, own: str, folder: Path) -> None:
    trainer = train(folder, f"{text}\n[losses.kl]\nweight = 0.1")
    assert [loss.name for loss in trainer.learner.losses] == [own, "kl"]


def test_grpo_plays_lessons_of_all_kinds_after_a_warm_start(folder: Path) -> None:
    text = (
        'task = "grpo"\npolicy = "model"\n'
        'lessons = ["addition-1", {name = "own", dataset = "problems.jsonl", checker = "checkers.py:half", '
        "held_out_share = 0.2, max_new_tokens = 3, success_above = 0.4}]\n"
        f"{SMALL}rollouts_per_epoch = 8\n"
    )
    trainer = train(folder, text)
    assert trainer.worker is not None
    scores = trainer.worker.evaluate(n_examples=4)
    assert (scores["eval/own/mean_reward"], scores["eval/own/success_rate"]) == (0.5, 1.0)
    assert set(trainer.worker.curriculum.lessons) == {"addition-1", "own"}
    warm = (
        f'{text}[warm_start]\ndataset = "examples.jsonl"\nuntil = {{own = 0.9}}\nsteps_per_epoch = 2\nbatch_size = 4\n'
    )
    trainer = train(folder, warm)
    assert (trainer.state.step, trainer.worker and trainer.worker.step) == (2, 0)


def test_a_lesson_has_an_environment_of_a_file_with_options_and_limits(folder: Path) -> None:
    lessons = (
        'lessons = [{environment = "twice.py:Twice", options = {word = "Prompt"}}, '
        '{name = "once", environment = "twice.py:ready", max_turns = 1, max_new_tokens = 2, seconds = 9, patience = 2}]'
    )
    text = f'task = "grpo"\npolicy = "model"\n{lessons}\n{SMALL}rollouts_per_epoch = 4\n'
    trainer = train(folder, text, run_dir=folder / "run")
    assert trainer.worker is not None
    import jax

    episodes = trainer.worker.play(EvaluationRequest(n_examples=2), jax.random.key(0))
    assert [turn.text for turn in episodes["twice.py:Twice"][0].turns[::2]] == ["Prompt", "again"]
    assert (episodes["twice.py:Twice"][0].reward, episodes["once"][0].reward) == (0.25, 0.0)
    assert episodes["once"][0].metadata["stop_reason"] == "max_turns"
    (folder / "run.toml").unlink()
    rebuilt = rebuild_trainer(folder / "run", PluginManager())
    assert rebuilt.worker is not None
    assert list(rebuilt.worker.curriculum.lessons) == ["twice.py:Twice", "once"]
    limits = {"max_turns": 1, "max_new_tokens": 2, "seconds": 9.0, "patience": 2.0}
    assert rebuilt.worker.curriculum.lessons["once"].limits == limits


def test_a_lesson_names_a_plugins_family_and_its_options(folder: Path) -> None:
    class Family:
        @hookimpl
        def register_environments(self) -> dict[str, Any]:
            return {"sums:": lambda name, *, answer: TextTask([(f"{name}=", answer)], max_new_tokens=2)}

    plugins = PluginManager()
    plugins.register(Family())
    config = GRPOTaskConfig(
        policy=str(folder / "model"),
        lessons=(LessonConfig(environment="sums:1+1", options={"answer": "2"}),),
        rollout=RolloutConfig(engine="transformers"),
    )
    worker = grpo.make(config, plugins).worker
    assert worker is not None
    (episode, *_) = worker.rollout().episodes
    assert (episode.prompt, episode.reference) == ("1+1=", "2")


def test_grpo_rewards_by_the_reward_processor(folder: Path) -> None:
    trainer = train(
        folder,
        'task = "grpo"\npolicy = "model"\nlessons = ["addition-1"]\n'
        f"{SMALL}[rewards]\nmin_reward_threshold = 0.0\n[rewards.reward_config]\ntarget_length = 1\n",
    )
    assert trainer.config.rewards.reward_config.target_length == 1  # type: ignore[attr-defined]
    assert trainer.state.rollout_stats["rollout/acceptance_rate"] == 1.0


def test_a_run_of_grpo_is_rebuilt_from_its_folder(folder: Path, tmp_path: Path) -> None:
    text = f'task = "grpo"\npolicy = "model"\nlessons = ["addition-1"]\nlora = {{r = 2}}\n{SMALL}'
    train(folder, text, run_dir=tmp_path / "run")
    (folder / "run.toml").unlink()
    trainer = rebuild_trainer(tmp_path / "run", PluginManager())
    assert all("lora_" in name for name in trainer.policy.state_dict())
    assert trainer.worker is not None
    assert list(trainer.worker.curriculum.lessons) == ["addition-1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'task = "sft"',
            "policy: task 'sft' needs a policy: set policy = \"FOLDER\"(.|\n)*dataset: task 'sft' needs a dataset",
        ),
        ('task = "sft"\npolicy = "model"', "task 'sft' needs a dataset: set dataset = \"examples.jsonl\""),
        ('task = "sft"\npolicy = "model"\ndataset = "none.jsonl"', r"none.jsonl cannot be read: No such file"),
        (
            'task = "sft"\npolicy = "model"\ndataset = "examples.jsonl"\nvalidation_share = 10',
            "run.toml: validation_share: (must|input should) be less than 1, got 10",
        ),
        (
            'task = "sft"\npolicy = "model"\ndataset = "examples.jsonl"\nvalidation_share = 1e-9',
            r"examples.jsonl has too few examples for validation_share = 1e-09",
        ),
        ('task = "grpo"\npolicy = "model"', "task 'grpo' needs lessons"),
        ('task = "grpo"', "has 2 faults:(.|\n)*task 'grpo' needs a policy(.|\n)*task 'grpo' needs lessons"),
        ('task = "grpo"\npolicy = "model"\nlessons = ["adition-1"]', r"did you mean 'addition-1'\?"),
        ('task = "grpo"\npolicy = "model"\nlessons = ["mazes:3"]', "there is no environment 'mazes:3'; known are"),
        (
            'task = "grpo"\npolicy = "model"\nlessons = [{name = "a", environment = "b", dataset = "problems.jsonl"}]',
            "lesson 'a' has an environment and a dataset: give it one of them",
        ),
        (
            'task = "grpo"\npolicy = "model"\nlessons = [{name = "a", environment = "none.py:A"}]',
            "lesson 'a', its environment: there is no file '.*none.py'",
        ),
        (
            'task = "grpo"\npolicy = "model"\nlessons = [{name = "own", dataset = "problems.jsonl", checker = "x"}]',
            "there is no checker 'x'; known are exact_match, and file.py:FUNCTION",
        ),
        (
            'task = "grpo"\npolicy = "model"\n'
            'lessons = [{name = "own", dataset = "problems.jsonl", checker = "checkers.py:hal"}]',
            r"its checker: there is no 'hal' in '.*checkers.py' \(.*\) \(did you mean 'half'\?\)",
        ),
        (
            'task = "grpo"\npolicy = "model"\nlessons = [{name = "a", datset = "b"}]\nwarm_start = {until = 1}\n'
            "[rewards]\nmin_reward_threshold = 2.0",
            r"lessons.0.datset: unknown key 'datset' \(did you mean 'dataset'\?\)(.|\n)*warm_start.dataset: is required"
            r"(.|\n)*rewards.min_reward_threshold: must be at most 1.0, got 2.0",
        ),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_do(text: str, message: str, folder: Path) -> None:
    with pytest.raises(HooklineError, match=message):
        train(folder, text)
