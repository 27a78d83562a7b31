"""Plugins of the project itself: named in the settings, without packaging, and then like any other."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hookline.plugin_manager import ConfigError, OrderError, PluginError, read_settings
from hookline.plugin_manager.listing import list_plugins
from hookline.run_file import read_run_file
from hookline.session import open_session
from hookline_hookspecs import HookContext, Rollout, TrainerState

if TYPE_CHECKING:
    from conftest import Site

GUARD = """
from dataclasses import dataclass
from hookline_hookspecs import hookimpl

@dataclass
class Options:
    patience: int = 3

class LossGuard:
    def __init__(self, options: Options):
        self.patience = options.patience
        self.seen = []

    @hookimpl(every=1)
    def on_epoch_end(self, state):
        self.seen.append(state.epoch)
"""


@pytest.fixture
def project(site: Site, request: pytest.FixtureRequest) -> Path:
    """A project with a package and a file, each of a name that no other test uses."""
    folder = site.folder / "project"
    (folder / "guards").mkdir(parents=True)
    for file in (folder / "guards" / f"guard_{abs(hash(request.node.nodeid))}.py", folder / "lone_guard.py"):
        file.write_text(GUARD)
    for module in ("guards", "lone_guard"):
        sys.modules.pop(module, None)
    return folder


def module_of(project: Path) -> str:
    (file,) = project.glob("guards/guard_*.py")
    return f"guards.{file.stem}"


def faults(site: Site, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        site.load(read_settings(site.folder / "project", **{"environ": {}, **arguments}))
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize("how", ["pyproject", "hookline.toml", "run file", "environment", "command line"])
@pytest.mark.parametrize("what", ["module", "file"])
def test_a_plugin_of_the_project_is_loaded_by_the_setting_that_names_it(
    site: Site, project: Path, how: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"{module_of(project)}:LossGuard" if what == "module" else "lone_guard.py:LossGuard"
    arguments: dict[str, Any] = {"environ": {}}
    if how == "pyproject":
        (project / "pyproject.toml").write_text(f'[tool.hookline]\nload = ["{reference}"]\n')
        where = "project/pyproject.toml: tool.hookline.load"
    elif how == "hookline.toml":
        (project / "hookline.toml").write_text(f'load = ["{reference}"]\n')
        where = "project/hookline.toml: load"
    elif how == "run file":
        (project / "run.toml").write_text(f'task = "sft"\nload = ["{reference}"]\n')
        arguments["run_file"] = read_run_file(project / "run.toml")
        where = f"{project / 'run.toml'}: load"
    else:
        monkeypatch.chdir(project)  # what is named outside of files is relative to the current folder
        if how == "environment":
            arguments["environ"], where = {"HOOKLINE_LOAD": reference}, "HOOKLINE_LOAD"
        else:
            arguments["plugin_arguments"], where = [reference], f"-p {reference}"
    manager, (record,) = site.load(read_settings(project, **arguments))
    manager.emit.on_epoch_end(state=TrainerState(epoch=4))
    assert manager.get_plugin("loss-guard").seen == [4]
    (listing,) = list_plugins(manager, [record])
    assert (listing.name, listing.state, listing.origin) == ("loss-guard", "active", f"{reference}, by {where}")
    assert (listing.distribution, listing.version, listing.options) == ("project", "", {"patience": 3})


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("lone_guard.py:LossGuard", "loss-guard"),
        ("mine = lone_guard.py:LossGuard", "mine"),
        ("mine=lone_guard.py:LossGuard", "mine"),
        ("lone_guard.py:make_guard", "make-guard"),
        ("lone_guard.py:HTTPGuard2", "http-guard2"),
        ("lone_guard.py", "lone-guard"),
    ],
)
def test_a_plugin_has_the_name_that_is_given_or_else_that_of_its_class(
    site: Site, project: Path, entry: str, name: str
) -> None:
    more = "def make_guard(): return LossGuard(Options())\nclass HTTPGuard2(LossGuard): ...\n"
    more += "@hookimpl\ndef on_epoch_start(state): ...\n"
    (project / "lone_guard.py").write_text(GUARD + more)
    (project / "hookline.toml").write_text(f'load = ["{entry}"]\n')
    manager, _ = site.load(read_settings(project, environ={}))
    assert [name for name, _ in manager.list_name_plugin()] == [name]


def test_it_is_configured_scheduled_and_ordered_like_an_installed_one(site: Site, project: Path) -> None:
    site.install("zz-first", "class Plugin:\n    @hookimpl\n    def on_epoch_end(self): ...\n")
    (project / "lone_guard.py").write_text(
        GUARD.replace("class LossGuard:", "class LossGuard:\n    after = ('zz-first',)")
    )
    (project / "hookline.toml").write_text(
        'load = ["lone_guard.py:LossGuard"]\nrequired = ["loss-guard"]\n[plugins.loss-guard]\npatience = 5\nevery = 2\n'
    )
    settings = read_settings(project, environ={}, option_arguments=["loss-guard.patience=7"])
    manager, _ = site.load(settings)
    for epoch in range(4):
        manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
    guard = manager.get_plugin("loss-guard")
    assert (guard.patience, guard.seen) == (7, [1, 3])
    called = [hookimpl.plugin_name for hookimpl in reversed(manager.hook.on_epoch_end.get_hookimpls())]
    assert called == ["zz-first", "loss-guard"]


@pytest.mark.parametrize(
    ("text", "arguments", "reason"),
    [
        ('disable = ["loss-guard"]', [], "by project/hookline.toml: disable"),
        ('disable = ["loss-guard@project"]', [], "by project/hookline.toml: disable"),
        ("", ["no:loss-guard"], "by -p no:loss-guard"),
        ("allow = []", [], "not allowed by an empty allow-list"),
    ],
)
def test_a_disabled_one_is_never_imported(
    site: Site, project: Path, text: str, arguments: list[str], reason: str
) -> None:
    (project / "hookline.toml").write_text(f'load = ["{module_of(project)}:LossGuard"]\n{text}\n')
    _, (record,) = site.load(read_settings(project, environ={}, plugin_arguments=arguments))
    assert (record.state, record.reason) == ("disabled", reason)
    assert module_of(project) not in sys.modules


def test_naming_it_on_the_command_line_allows_it(site: Site, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "hookline.toml").write_text('allow = []\ndisable = ["loss-guard"]\n')
    _, (record,) = site.load(read_settings(project, environ={}, plugin_arguments=["lone_guard.py:LossGuard"]))
    assert record.state == "active"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('load = ["missing.py:LossGuard"]', "load: there is no file '{project}/missing.py'"),
        (
            'load = ["lone_guard.py:LossGard"]',
            "load: there is no 'LossGard' in 'lone_guard.py' ({project}/lone_guard.py) (did you mean 'LossGuard'?)",
        ),
        (
            'load = ["lone_guard.py:Zebra"]',
            "load: there is no 'Zebra' in 'lone_guard.py' ({project}/lone_guard.py); it has Options, LossGuard",
        ),
        ('load = ["my_projekt.guards:LossGuard"]', "load: there is no module 'my_projekt': looked in {project}"),
        (
            'load = ["guards.nothing:LossGuard"]',
            "load: there is no module 'guards.nothing': looked in {project}",
        ),
        (
            'load = ["my project:LossGuard"]',
            "load: 'my project:LossGuard' is not of the form module:NAME or path/to/file.py",
        ),
        ('load = ["a.b=lone_guard.py:LossGuard"]', "load: 'a.b' is not a plugin name: use letters, digits and dashes"),
        ("load = [3]", "load.0: input should be a valid string, got 3"),
        ("[[hooks]]\nname = 'x'", "hooks[0].use: must be a string, as in use = "),
        ("[[hooks]]\nuse = 'x.py:X'\nname = 3", "hooks[0].name: must be a string, as in name = "),
        (
            'load = ["lone_guard.py:LossGuard"]\nrequired = ["loss-guard>=2"]',
            "required: plugin 'loss-guard>=2' is required, but 'loss-guard' (lone_guard.py:LossGuard, by "
            "project/hookline.toml: load) has no version",
        ),
        (
            'load = ["lone_guard.py:LossGuard"]\n[plugins.loss-guard]\npatiense = 3',
            "plugins.loss-guard.patiense: unknown key 'patiense' (did you mean 'patience'?)",
        ),
    ],
)
def test_what_is_not_there_or_not_right_is_a_fault_that_says_where_it_was_looked_for(
    site: Site, project: Path, text: str, expected: str
) -> None:
    (project / "hookline.toml").write_text(text)
    (fault,) = faults(site)
    assert fault.startswith(f"project/hookline.toml: {expected.format(project=project)}")


def test_a_module_that_is_not_there_was_looked_for_in_pythonpath_too(
    site: Site, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "hookline.toml").write_text('load = ["my_projekt:LossGuard"]')
    monkeypatch.syspath_prepend(site.folder / "shared")
    # The second was set when the process ran already, so it is not looked in.
    monkeypatch.setenv("PYTHONPATH", f"shared{os.pathsep}{site.folder / 'nowhere'}")
    (fault,) = faults(site)
    assert fault == (
        f"project/hookline.toml: load: there is no module 'my_projekt': looked in {project}, {site.folder / 'shared'} and in "
        f"{sysconfig.get_path('purelib')}. A file is named by its path, as in path/to/file.py:NAME"
    )


def test_a_file_cannot_take_the_place_of_another_module(site: Site, project: Path) -> None:
    (project / "json.py").write_text(GUARD)
    (project / "hookline.toml").write_text('load = ["json.py:LossGuard"]')
    (fault,) = faults(site)
    assert f"cannot be imported: another module 'json' is imported already, from {json.__file__}: rename" in fault
    assert sys.modules["json"] is json


def test_a_plugin_is_turned_off_by_its_name_not_by_its_file(site: Site, project: Path) -> None:
    assert faults(site, plugin_arguments=["no:lone_guard.py:LossGuard"]) == [
        "-p no:lone_guard.py:LossGuard: turn a plugin off by its name, as in -p no:nan-guard"
    ]


def test_a_name_that_is_taken_says_how_to_choose_another(site: Site, project: Path) -> None:
    site.install("loss-guard", GUARD.replace("LossGuard", "Plugin"))
    (project / "hookline.toml").write_text('load = ["lone_guard.py:LossGuard"]\n')
    (fault,) = faults(site)
    assert fault == (
        "plugin 'loss-guard': two plugins have this name, from lone_guard.py:LossGuard, by project/hookline.toml: load and "
        'test-loss-guard 1.0: load it by another name, as in load = ["loss-guard-2=lone_guard.py:LossGuard"], or '
        'disable = ["loss-guard@test-loss-guard"]'
    )
    settings = read_settings(project, environ={}, plugin_arguments=["no:loss-guard@test-loss-guard"])
    assert {record.found.distribution: record.state for record in site.load(settings)[1]} == {
        "test-loss-guard": "disabled",
        "project": "active",
    }


def test_two_objects_of_one_file_share_its_module(site: Site, project: Path) -> None:
    (project / "hookline.toml").write_text('load = ["a=lone_guard.py:LossGuard", "b=lone_guard.py:LossGuard"]\n')
    manager, _ = site.load(read_settings(project, environ={}))
    assert type(manager.get_plugin("a")) is type(manager.get_plugin("b"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_like_it", "cannot be imported: ModuleNotFoundError: No module named 'nothing_like_it'"),
        (
            "class LossGuard: ...",
            "cannot be used: LossGuard implements no event: mark methods that are named after events with @hookimpl",
        ),
    ],
)
def test_a_faulty_one_is_left_out_and_with_strict_an_error(site: Site, project: Path, source: str, reason: str) -> None:
    (project / "lone_guard.py").write_text(source)
    (project / "hookline.toml").write_text('load = ["lone_guard.py:LossGuard"]\n')
    _, (record,) = site.load(read_settings(project, environ={}))
    assert (record.state, record.reason) == ("failed", reason)
    with pytest.raises(PluginError, match="strict = true"):
        site.load(read_settings(project, environ={"HOOKLINE_STRICT": "1"}))


def test_a_file_without_the_name_of_its_class_says_how_to_name_it(site: Site, project: Path) -> None:
    _, records = site.load(read_settings(project, environ={}, plugin_arguments=["project/lone_guard.py"]))
    (record,) = [record for record in records if record.name == "lone-guard"]
    assert record.state == "failed"
    assert record.reason.endswith("it implements no event: name a class in it, as in project/lone_guard.py:LossGuard")


def test_an_installed_plugin_can_require_one_of_the_project(site: Site, project: Path) -> None:
    site.install(
        "a-user", "class Plugin:\n    requires = ('loss-guard',)\n    @hookimpl\n    def on_epoch_end(self): ...\n"
    )
    with pytest.raises(OrderError, match="'a-user' requires 'loss-guard', which is not installed"):
        site.load(read_settings(project, environ={}))
    (project / "hookline.toml").write_text('load = ["lone_guard.py:LossGuard"]\n')
    manager, _ = site.load(read_settings(project, environ={}))
    assert [name for name, _ in manager.list_name_plugin()] == ["loss-guard", "a-user"]


# -- hooks with their arguments ---------------------------------------------------------------------------------------

HOOKS = """
from hookline.hooks import PeriodicHook
from hookline_hookspecs import TrainerHook

class HealthHook(PeriodicHook):
    def __init__(self, frequency=100, threshold: float = 0.9, labels=()):
        super().__init__(frequency)
        self.threshold, self.labels = threshold, labels

    def run(self, context):
        return {"health.step": context.step, "health.threshold": self.threshold}

class Reporter(TrainerHook):
    def __init__(self, prefix: str):
        self.prefix, self.said = prefix, []

    def log_metrics(self, step, trainer_state):
        self.said.append((self.prefix, step, trainer_state.run_id))
"""


def test_hooks_in_a_file_are_made_with_their_arguments(site: Site, project: Path) -> None:
    pytest.importorskip("jax")
    (project / "health_hooks.py").write_text(HOOKS)
    (project / "pyproject.toml").write_text(
        '[[tool.hookline.hooks]]\nuse = "health_hooks.py:HealthHook"\nfrequency = 2\nthreshold = 1\n'
        '[[tool.hookline.hooks]]\nuse = "health_hooks:HealthHook"\nname = "slow"\nfrequency = 3\n'
        '[[tool.hookline.hooks]]\nuse = "health_hooks:Reporter"\nprefix = "run"\n'
    )
    settings = read_settings(project, environ={}, option_arguments=["slow.threshold=0.5"])
    manager, records = site.load(settings)
    assert [(record.name, record.state) for record in records] == [
        ("health-hook", "active"),
        ("reporter", "active"),
        ("slow", "active"),
    ]
    results = []
    for step in range(1, 5):
        context = HookContext(step=step)
        manager.emit.on_rollout_end(context=context, rollout=Rollout())
        results.append(context.metadata.get("hook_results"))
    assert results == [
        None,
        {"health.step": 2, "health.threshold": 1.0},
        {"health.step": 3, "health.threshold": 0.5},
        {"health.step": 4, "health.threshold": 1.0},
    ]
    manager.emit.on_new_training_run(state=TrainerState(run_id="mine"))
    manager.emit.log_metrics(report_data={}, step=7)
    assert manager.get_plugin("reporter").hook.said == [("run", 7, "mine")]


@pytest.mark.parametrize(
    "second", ['use = "health_hooks.py:HealthHook"', 'use = "health_hooks.py:Reporter"\nname = "health-hook"']
)
def test_two_hooks_of_one_name_are_a_fault(site: Site, project: Path, second: str) -> None:
    (project / "health_hooks.py").write_text(HOOKS)
    (project / "hookline.toml").write_text(
        f'[[hooks]]\nuse = "health_hooks.py:HealthHook"\nfrequency = 2\n[[hooks]]\n{second}\nfrequency = 3\n'
    )
    assert faults(site) == [
        "project/hookline.toml: hooks[1]: 'health-hook' is the name of project/hookline.toml: hooks[0] too: give one of them "
        "a `name` of its own"
    ]


def test_a_run_file_changes_an_argument_of_a_hook_of_the_project(site: Site, project: Path) -> None:
    (project / "health_hooks.py").write_text(HOOKS)
    table = '[[hooks]]\nuse = "health_hooks.py:HealthHook"\n'
    (project / "hookline.toml").write_text(f"{table}frequency = 2\nthreshold = 0.5\n")
    (project / "run.toml").write_text(f'task = "sft"\n{table}frequency = 3\n')
    settings = read_settings(project, environ={}, run_file=read_run_file(project / "run.toml"))
    assert settings.faults == []
    assert [entry.name for entry in settings.loaded] == ["health-hook"]
    assert settings.options["health-hook"] == {"frequency": 3, "threshold": 0.5}


def test_arguments_of_a_hook_that_do_not_fit_are_faults_with_their_place(site: Site, project: Path) -> None:
    (project / "health_hooks.py").write_text(HOOKS)
    (project / "hookline.toml").write_text(
        '[[hooks]]\nuse = "health_hooks.py:HealthHook"\nfrequenzy = 2\nthreshold = "high"\n'
        '[[hooks]]\nuse = "health_hooks.py:Reporter"\n'
    )
    assert faults(site) == [
        "project/hookline.toml: hooks[0].threshold: input should be a valid number, unable to parse string as a number, "
        "got 'high'",
        "project/hookline.toml: hooks[0].frequenzy: unknown key 'frequenzy' (did you mean 'frequency'?)",
        "[tool.hookline.plugins.reporter] prefix: is required",
    ]


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_a_resumed_run_loads_what_it_began_with_or_says_why_not(
    site: Site, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = site.folder / "run"
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOOKLINE_ALLOW", "loss-guard")
    began = read_settings(plugin_arguments=["lone_guard.py:LossGuard"], option_arguments=["loss-guard.patience=5"])
    with open_session(run_dir, total_epochs=1, settings=began) as session:
        list(session.epochs())
    recorded = json.loads((run_dir / "config.json").read_text())["plugins"]["loss-guard"]
    assert recorded["load"] == {"module": "lone_guard.py", "name": "LossGuard", "folder": str(project)}
    assert recorded["options"] == {"patience": 5}

    monkeypatch.chdir(site.folder)

    def resumed(*arguments: str) -> Any:
        return site.load(read_settings(environ={}, recorded=run_dir / "config.json", plugin_arguments=arguments))

    manager, (record,) = resumed()
    assert (record.state, manager.get_plugin("loss-guard").patience) == ("active", 5)
    (project / "lone_guard.py").unlink()
    with pytest.raises(ConfigError) as caught:
        resumed()
    assert [str(fault) for fault in caught.value.faults] == [
        f"run/config.json: plugins.loss-guard.load: there is no file '{project}/lone_guard.py'. The run began with it: "
        "put it back, or go on without it by -p no:loss-guard"
    ]
    assert resumed("no:loss-guard")[1][0].state == "disabled"

    site.install("loss-guard", GUARD.replace("LossGuard", "Plugin"))  # packaged since
    manager, (record,) = resumed()
    assert (record.found.distribution, manager.get_plugin("loss-guard").patience) == ("test-loss-guard", 5)


def test_the_settings_of_the_page_load_what_they_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    page = Path(__file__).parents[2] / "docs" / "project-plugins.md"
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    (site.folder / "pyproject.toml").write_text("\n".join(blocks))
    sources = {
        "my_project/guards.py": GUARD.replace("LossGuard", "NanGuard"),
        "my_project/hooks.py": HOOKS,
        "guards/rewards.py": GUARD.replace("LossGuard", "RewardGuard"),
    }
    for file, source in sources.items():
        (site.folder / file).parent.mkdir(exist_ok=True)
        (site.folder / file).write_text(source)
    manager, records = site.load()
    assert {record.name: (record.state, record.reason) for record in records} == dict.fromkeys(
        ["health-hook", "nan-guard", "quick-evaluation", "reward-guard"], ("active", "")
    )
    assert manager.get_plugin("nan-guard").patience == 5
    health, evaluation = (manager.get_plugin(name).hook for name in ("health-hook", "quick-evaluation"))
    assert (health.frequency, health.threshold) == (25, 0.9)
    assert (evaluation.frequency, evaluation.n_examples) == (10, 8)
