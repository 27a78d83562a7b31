"""Every block of code in the documentation is run by a test: here, or by the test that claims it below.

The pages are those of the site (`tools/documentation_site.py`). A block without a language holds commands. A block in `text`, `json` or
`sql` is no code of this page. Python of a page is one program: its blocks share their names.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

pytest.importorskip("torch")
pytest.importorskip("jax")

import hookline
from hookline.cli import main
from hookline.cli.plugin_directory import available_plugins
from hookline.importing import import_file
from hookline.plugin_manager.loading import open_plugins
from hookline.plugin_manager.settings import read_settings
from hookline.training import Trainer, TrainerConfig
from hookline.training.run import show_config

ROOT = Path(__file__).parents[1]
SITE = import_file(ROOT / "tools" / "documentation_site.py")

CLAIMED = {
    ("README.md", "python", 1): "tests/test_readme.py::test_the_plugin_in_ten_lines_does_what_it_says",
    (
        "docs/engines.md",
        "python",
        2,
    ): "core/tests/rollout/test_engines.py::test_a_plugin_adds_an_engine_that_passes_and_that_a_worker_uses",
    (
        "docs/environments.md",
        "python",
        4,
    ): "tests/test_environments_page.py::test_the_game_is_played_and_the_plugin_ends_a_conversation",
    (
        "docs/environments.md",
        "toml",
        2,
    ): "tests/test_environments_page.py::test_the_lessons_have_keys_that_the_task_knows",
    (
        "docs/lightning.md",
        "python",
        1,
    ): "bridges/lightning/tests/test_documentation.py::test_the_script_of_the_documentation_is_a_run",
    (
        "docs/policies.md",
        "python",
        4,
    ): "core/tests/training/test_own_policy.py::test_the_policies_of_the_documentation_run",
    (
        "docs/project-plugins.md",
        "toml",
        2,
    ): "core/tests/test_project_plugins.py::test_the_settings_of_the_page_load_what_they_name",
    ("docs/rewards.md", "python", 2): "core/tests/rewards/test_models.py::test_the_code_of_the_documentation_runs",
    ("docs/secrets.md", "python", 1): "tests/test_secrets.py::test_the_code_of_the_page_on_secrets_does_what_it_says",
    (
        "docs/sinks.md",
        "python",
        2,
    ): "tests/test_sinks_page.py::test_the_pages_own_test_passes_and_its_plugin_is_a_good_one",
    ("docs/sinks.md", "toml", 1): "tests/test_sinks_page.py::test_the_page_has_a_sink_that_works_in_a_run",
    (
        "docs/stable-baselines3.md",
        "python",
        1,
    ): "tests/test_stable_baselines3_page.py::test_the_script_of_the_documentation_runs",
    ("docs/transformers.md", "python", 2): "bridges/transformers/tests/test_page.py::test_the_snippet_is_a_run",
    ("docs/write-a-plugin.md", "python", 2): "tests/test_pages.py::test_the_plugin_of_the_page_passes_its_own_tests",
    ("docs/write-a-plugin.md", "toml", 1): "tests/test_pages.py::test_the_plugin_of_the_page_passes_its_own_tests",
    (
        "bridges/lightning/README.md",
        "python",
        1,
    ): "bridges/lightning/tests/test_documentation.py::test_the_code_of_the_readme_runs",
    ("bridges/sb3/README.md", "python", 1): "tests/test_stable_baselines3_page.py::test_the_script_of_the_readme_runs",
    (
        "bridges/transformers/README.md",
        "python",
        1,
    ): "bridges/transformers/tests/test_page.py::test_the_snippet_is_a_run",
}
"""Blocks that other tests run: page, language, and how many there are."""

COMMANDS_ELSEWHERE = {
    "git clone": "not ours",
    "cd ": "not ours",
    "make ": "tests/test_workflows.py::test_every_make_target_that_is_named_exists",
    "mlflow ": "not ours",
    "tensorboard ": "not ours",
    "trackio ": "not ours",
    "wandb ": "not ours",
    "pip uninstall hookline-status": "tests/test_toggling.py::test_toggling_a_plugin_changes_the_next_run_and_nothing_else",
    "python examples/make_tiny_model.py": "tests/test_hugging_face_runs.py",
    "hookline train examples/": "tests/test_hugging_face_runs.py",
    "hookline evaluate runs/grpo_hf": "tests/test_hugging_face_runs.py",
    "hookline export runs/grpo_hf": "tests/test_hugging_face_runs.py",
    "python train.py": "tests/test_stable_baselines3_page.py::test_the_script_of_the_documentation_runs",
    "hookline serve": "plugins/metrics/tests/test_serve.py",
    "hookline evaluate --serve": "plugins/evaluation/tests/test_server.py",
    "hookline new-plugin": "tests/test_pages.py::test_the_plugin_of_the_page_passes_its_own_tests",
    "hookline train cartpole --epochs 2 -o reward-guard": "tests/test_pages.py::test_the_plugin_of_the_page_passes_its_own_tests",
    "pytest hookline-reward-guard": "tests/test_pages.py::test_the_plugin_of_the_page_passes_its_own_tests",
}
"""The beginnings of commands that are not run here, and what runs them."""

STANDS_FOR = {
    "A": "pole",
    "B": "lightning-0",
    "RUN": "runs/pole",
    "runs/cartpole-20260101-120000": "runs/pole",
    "runs/.../checkpoints/epoch-000010": "runs/pole/checkpoints/epoch-000001",
    "my-run": "pole",
    "runs/cartpole": "runs/pole",
}
"""What words of commands stand for here. The folder has the runs `pole` and `lightning-0`."""

TRAINED = {"docs/start.md", "docs/settings.md"}
"""Pages whose trainings are run, for two epochs. Those of other pages are resolved to their config, and not trained."""


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(page, language, code) for language, code in fenced]


BLOCKS = [block for page in SITE.pages() for block in blocks(page)]
CLAIMS = {(page, language) for page, language, _ in CLAIMED}


def unclaimed(language: str) -> list[Block]:
    return [own for own in BLOCKS if own.language == language and (own.page, language) not in CLAIMS]


# -- nothing is left out ----------------------------------------------------------------------------------------------


def test_every_block_is_run_here_or_by_a_test_that_exists() -> None:
    known = {"", "python", "toml", "text", "json", "sql"}
    assert [own for own in BLOCKS if own.language not in known] == [], "say how blocks of this language are tested"
    for (page, language, count), test in CLAIMED.items():
        found = [own for own in BLOCKS if (own.page, own.language) == (page, language)]
        assert len(found) == count, f"{page} has {len(found)} blocks of {language}; {test} claims {count}"
    runners = {*CLAIMED.values(), *COMMANDS_ELSEWHERE.values()} - {"not ours"}
    for runner in runners:
        file, _, name = runner.partition("::")
        functions = [
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        ]
        assert not name or name in functions, runner
    pages_with_python = {own.page for own in unclaimed("python")}
    assert pages_with_python == PROGRAMS.keys() | {"docs/start.md"}, "no test runs the Python of these pages"


# -- Python -----------------------------------------------------------------------------------------------------------


def small_trainer() -> Trainer:
    return Trainer(TrainerConfig(epochs=1))


def assert_the_loop_left_a_run(names: dict[str, Any]) -> None:
    files = {path.name for path in Path("runs/my-run").iterdir()}
    assert files >= {"stats.sqlite", "report.html", "status.json", "heartbeat", "checkpoints"}


def assert_a_source_is_registered(names: dict[str, Any]) -> None:
    assert names["Plugin"]().register_sources() == {"mine": names["build"]}


def assert_the_number_is_found(names: dict[str, Any]) -> None:
    problem = type("Problem", (), {"answer": "46"})
    assert [names["last_number"](problem, text) for text in ("12 and 34 are 46.", "47", "")] == [1.0, 0.0, 0.0]


def assert_the_maze_is_a_task(names: dict[str, Any]) -> None:
    trainer = names["maze"].build(names["MazeConfig"](epochs=1, maps=Path("maps")), hookline.PluginManager())
    assert trainer.config.maps == Path("maps")


def assert_the_verifier_verifies(names: dict[str, Any]) -> None:
    assert names["Polite"]().verify("", "Yes, please.").message == "says please"


PROGRAMS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None] | None]] = {
    "docs/learner.md": (dict, None),
    "docs/own-loop.md": (dict, assert_the_loop_left_a_run),
    "docs/real-models.md": (dict, assert_the_number_is_found),
    "docs/run-files.md": (lambda: {"curriculum_of": lambda maps: None}, assert_the_maze_is_a_task),
    "docs/sources.md": (dict, assert_a_source_is_registered),
    "docs/training.md": (dict, None),
    "plugins/checkpoint/README.md": (lambda: {"trainer": small_trainer()}, None),
    "plugins/environments/README.md": (dict, None),
    "plugins/evaluation/README.md": (lambda: {"trainer": small_trainer(), "curriculum": None, "walk": None}, None),
    "plugins/status/README.md": (dict, None),
    "plugins/verifiers/README.md": (dict, assert_the_verifier_verifies),
}
"""The names that the Python of a page needs, and what is true after it."""


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given, check = PROGRAMS[page]
    names: dict[str, Any] = {"__name__": "page", **given()}
    for block in (own for own in unclaimed("python") if own.page == page):
        exec(compile(block.text, page, "exec", dont_inherit=True), names)
    if check is not None:
        check(names)


# -- TOML -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", unclaimed("toml"), ids=lambda own: own.page)
def test_toml_is_settings_or_a_run_file(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = tomllib.loads(block.text)
    if "tool" in table:
        (tmp_path / "pyproject.toml").write_text(block.text)
        with open_plugins(settings=read_settings()) as plugins:
            assert plugins.list_name_plugin()
        return
    beginning = "" if "task" in table else 'task = "grpo"\npolicy = "models/tiny"\n'
    (tmp_path / "run.toml").write_text(
        beginning + ("" if "lessons" in table else 'lessons = ["addition-1"]\n') + block.text
    )
    for file in ("problems.jsonl", "sums.jsonl"):
        (tmp_path / file).write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (tmp_path / "checkers.py").write_text("def last_number(problem, response): ...\n")
    assert "[rollout]" in show_config("run.toml")


def test_the_faults_of_a_run_file_are_those_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = [own.text for own in BLOCKS if (own.page, own.language) == ("docs/run-files.md", "text")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('task = "cartpole"\nepoch = 3\n[optimizer]\nlearning_rate = -1.0\n')
    assert run_command(["train", "run.toml", "--set", "rollout.minibatche=2"]) == 1
    assert capsys.readouterr().err == shown


# -- commands ---------------------------------------------------------------------------------------------------------


def run_command(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def commands() -> Iterator[tuple[str, str]]:
    """Each command with its page, without its comment and without variables before it."""
    for block in unclaimed(""):
        for line in block.text.splitlines():
            command = re.sub(r"^[A-Z_]+=\S+ ", "", line.partition(" #")[0].strip())
            for part in command.split(" && "):
                if part and not part.startswith(tuple(COMMANDS_ELSEWHERE)):
                    yield block.page, part


def test_what_pip_installs_is_there() -> None:
    ours = {entry.name: entry.home for entry in available_plugins()} | {
        "hookline": "core",
        "hookline-nan-guard": "examples/third_party_plugin",
    }
    installs = [line.removeprefix("pip install ") for _, line in commands() if line.startswith("pip install")]
    named = [word for line in installs for word in shlex.split(line) if word not in ("-e", "mlflow")]
    assert len(named) > 8
    for word in named:
        requirement = Requirement(word.removeprefix("./"))
        if requirement.name != "hookline-reward-guard":  # the plugin that the page makes
            project = tomllib.loads((ROOT / ours[requirement.name] / "pyproject.toml").read_text())["project"]
            assert requirement.extras <= project.get("optional-dependencies", {}).keys(), word


def test_every_command_works(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("commands")
    monkeypatch.chdir(folder)
    (printer,) = [own.text for own in BLOCKS if (own.page, own.language) == ("docs/start.md", "python")]
    (folder / "loss_printer.py").write_text(printer)
    (folder / "run.toml").write_text('task = "cartpole"\nepochs = 1\n')
    assert run_command(["train", "cartpole", "--run-dir", "runs/lightning-0", "--epochs", "2"]) == 0
    seen: set[str] = set()
    order = sorted(commands(), key=lambda own: own[0] not in TRAINED)  # what these train, others look at
    for page, line in order:
        if line in seen or line.startswith("pip install"):
            continue
        seen.add(line)
        program, *arguments = [STANDS_FOR.get(word, word) for word in shlex.split(line.partition(" > ")[0])]
        assert program == "hookline", f"{page}: no test runs `{line}`"
        if arguments[0] == "train" and "--show-config" not in arguments:
            arguments += ["--show-config"] if page not in TRAINED else [] if "--epochs" in line else ["--epochs", "2"]
        capsys.readouterr()
        assert run_command(arguments) == 0, f"{page}: {line}\n{capsys.readouterr().err}"
        assert capsys.readouterr().out.strip() or "--check" in line, line
    assert len(seen) > 20
    assert (folder / "runs" / "pole" / "report.html").exists()
    assert (folder / "hookline.lock").exists()


# -- the plugin that docs/write-a-plugin.md makes -----------------------------------------------------------------------


def test_the_plugin_of_the_page_passes_its_own_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin, test = [own.text for own in blocks("docs/write-a-plugin.md") if own.language == "python"]
    (entry_points,) = [own.text for own in blocks("docs/write-a-plugin.md") if own.language == "toml"]
    assert run_command(["new-plugin", "reward-guard", "--in", str(tmp_path)]) == 0
    project = tmp_path / "hookline-reward-guard"
    assert entry_points in (project / "pyproject.toml").read_text()
    (project / "src" / "hookline_reward_guard" / "__init__.py").write_text(plugin)
    for old in (project / "tests").glob("test_*.py"):
        old.unlink()
    (project / "tests" / "test_reward_guard.py").write_text(test)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "hookline-reward-guard"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        timeout=500,
        check=False,
    )
    assert "2 passed" in result.stdout, result.stdout + result.stderr
    guard = f"{project / 'src' / 'hookline_reward_guard' / '__init__.py'}:RewardGuard"
    (line,) = re.findall(r"^hookline (train .*)$", (ROOT / "docs/write-a-plugin.md").read_text(), flags=re.MULTILINE)
    run_dir = str(tmp_path / "run")
    assert run_command([*shlex.split(line), "-p", f"reward-guard={guard}", "--run-dir", run_dir]) == 0
    assert "ended early: a mean reward below 500.0 for 1 epochs" in capsys.readouterr().out
