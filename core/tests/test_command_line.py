"""The command line, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hookline import PluginManager
from hookline.cli import main

if TYPE_CHECKING:
    from conftest import Site

OBSERVER = '''
@dataclass
class Options:
    folder: str = "here"
    api_token: str = "sesame"

class Plugin:
    """Observes a run."""

    after = ("metrics",)

    def __init__(self, options: Options): ...

    @hookimpl
    def on_epoch_end(self, state): ...

    @hookimpl(every=5)
    def post_training_step(self, state): ...
'''


def hookline(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command; returns its exit code and what it printed to stdout and stderr."""
    code: Any = 0
    try:
        main(arguments)
    except SystemExit as exit_:
        code = exit_.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def listed(capsys: pytest.CaptureFixture[str], site: Site, *arguments: str) -> dict[str, dict[str, Any]]:
    _, out, _ = hookline(capsys, "plugins", "--json", *arguments)
    return {plugin["name"]: plugin for plugin in json.loads(out)["plugins"] if plugin["name"] in site.names}


def test_plugins_as_json_tells_all_about_each(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("observer-x", OBSERVER, version="1.4")
    assert listed(capsys, site)["observer-x"] == {
        "name": "observer-x",
        "distribution": "test-observer-x",
        "version": "1.4",
        "origin": "test-observer-x 1.4",
        "state": "active",
        "reason": "",
        "summary": "Observes a run.",
        "events": ["post_training_step", "on_epoch_end"],
        "schedules": {"post_training_step": "every 5"},
        "after": ["metrics"],
        "before": [],
        "requires": [],
        "options": {"folder": "here", "api_token": "********"},
    }


@pytest.mark.parametrize(
    ("doc", "summary"),
    [
        ("Observes a run. Prints nothing.", "Observes a run."),
        ("Observes a run, e.g. GRPO of\n    a model. Prints nothing.", "Observes a run, e.g. GRPO of a model."),
        ("Observes a run of version 0.2\n\n    Prints nothing.", "Observes a run of version 0.2"),
    ],
)
def test_what_a_plugin_does_is_the_first_sentence_of_its_docstring(
    site: Site, capsys: pytest.CaptureFixture[str], doc: str, summary: str
) -> None:
    site.install("observer-x", OBSERVER.replace("Observes a run.", doc))
    assert listed(capsys, site)["observer-x"]["summary"] == summary


def test_plugins_has_a_line_for_each_and_the_reasons_below(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("observer-x", OBSERVER)
    site.install("broken-x", "import nothing_like_this")
    site.install("off-x", OBSERVER)
    code, out, _ = hookline(capsys, "plugins", "-p", "no:off-x")
    assert code == 0
    reason = "cannot be imported: ModuleNotFoundError: No module named 'nothing_like_this'"
    assert f"broken-x has failed: {reason}" in out.splitlines()
    assert "off-x is disabled: by -p no:off-x" in out.splitlines()
    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    assert ["observer-x", "1.0", "active", "Observes a run."] in lines
    assert ["off-x", "1.0", "disabled"] in lines  # not imported, so its docstring is not known
    assert len({line.index(state) for line in out.splitlines() for state in (" active ",) if state in line}) == 1


def test_plugins_is_cut_to_the_width_of_a_terminal_and_not_in_a_pipe(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("observer-x", OBSERVER.replace("Observes a run.", "Observes " + "a long " * 20 + "run."))
    assert "long run." in hookline(capsys, "plugins")[1]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    (line,) = [line for line in hookline(capsys, "plugins")[1].splitlines() if line.startswith("observer-x ")]
    assert (len(line), line[-1]) == (60, "…")


def test_plugins_in_full_shows_events_order_and_options(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    site.install("observer-x", OBSERVER)
    _, out, _ = hookline(capsys, "plugins", "--verbose")
    for part in ("test-observer-x 1.0", "post_training_step every 5", "after metrics", 'folder = "here"'):
        assert part in out
    assert "sesame" not in out


def test_plugins_works_and_says_what_is_wrong_when_the_settings_have_faults(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.install("observer-x", OBSERVER)
    code, out, _ = hookline(capsys, "plugins", "--json", "-o", "observer-x.foldr=y", "-p", "no:obsrver-x")
    assert code == 1
    assert json.loads(out)["problems"] == [
        "-p no:obsrver-x: no installed plugin is called 'obsrver-x' (did you mean 'observer-x'?)",
        "-o observer-x.foldr: unknown key 'foldr' (did you mean 'folder'?)",
    ]


def test_plugins_of_one_event_come_in_call_order(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("a-x", OBSERVER)
    site.install("b-x", OBSERVER.replace('"metrics",', '"a-x",'))
    site.install("c-x", "class Plugin:\n    @hookimpl\n    def on_epoch_start(self): ...\n")
    assert list(listed(capsys, site, "--hook", "on_epoch_end")) == ["a-x", "b-x"]


@pytest.mark.parametrize("command", ["plugins --hook on_epch_end", "hooks on_epch_end"])
def test_an_unknown_event_suggests_the_nearest(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, _, err = hookline(capsys, *command.split())
    assert (code, err.strip()) == (1, "hookline: there is no event 'on_epch_end' (did you mean 'on_epoch_end'?)")


def test_hooks_lists_every_event(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = hookline(capsys, "hooks")
    for event in PluginManager().events.values():
        assert event.name in out
    assert "A gradient step has been taken." in out


def test_hooks_shows_all_about_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = hookline(capsys, "hooks", "log_metrics")
    for line in (
        "log_metrics(report_data, step)",
        "Kind: notify (results are ignored)",
        "Clock: step (steps that are complete)",
        "Scope: driver (rank 0 only)",
        "Emitted by: trainer.",
    ):
        assert line in out.splitlines()


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hookline(capsys, "trian")
    assert (code, err.strip()) == (1, "hookline: there is no command 'trian' (did you mean 'train'?)")


COMMANDS = """
class Plugin:
    @hookimpl
    def register_commands(self):
        def greet(name: str, *, loud: bool = False):
            '''Greet by name.'''
            print(f"hello {name}" + "!" * loud)
        return {"greet": greet}
"""


def test_a_plugin_brings_a_command_with_typed_arguments(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("greeter", COMMANDS)
    assert hookline(capsys, "greet", "you", "--loud")[1] == "hello you!\n"
    assert "Greet by name." in hookline(capsys, "--help")[1]


def test_two_plugins_with_one_command_are_told_apart(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("greeter-a", COMMANDS)
    site.install("greeter-b", COMMANDS)
    _, _, err = hookline(capsys, "greet", "you")
    assert err.strip() == (
        "hookline: plugin 'greeter-b' (test-greeter-b 1.0) cannot be used: its command 'greet' "
        "is already a command of plugin 'greeter-a' (test-greeter-a 1.0); it is left out"
    )


def test_a_fault_in_the_settings_does_not_take_the_help_away(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.folder / "pyproject.toml").write_text("[tool.hookline]\nstrikt = true\n")
    code, out, err = hookline(capsys, "--help")
    assert code == 0
    assert "new-plugin" in out
    assert "unknown key 'strikt' (did you mean 'strict'?)" in err


FAULTY = {
    "no-self": "class Plugin:\n    @hookimpl\n    def on_epoch_end(): ...\n",
    "base-exception": "class Odd(BaseException): ...\nraise Odd('at import')\n",
    "exits": "raise SystemExit(0)\n",
    "number": "class Plugin:\n    @hookimpl\n    def register_commands(self): return 3\n",
    "leaves": "class Plugin:\n    @hookimpl\n    def register_commands(self): raise SystemExit(0)\n",
    "raises": "class Plugin:\n    critical = True\n    @hookimpl\n    def register_commands(self): raise OSError('no')\n",
    "untyped": (
        "class Plugin:\n    @hookimpl\n    def register_commands(self):\n"
        "        def greet(name: 'Missing'): ...\n        return {'greeting': greet}\n"
    ),
    "not-made": "class Plugin:\n    def __init__(self): raise OSError('no disk')\n",
    "unordered": "class Plugin:\n    requires = ('nothing-like-this',)\n",
    "bad-options": (
        "@dataclass\nclass Options:\n    x: 'Missing' = 0\nclass Plugin:\n    def __init__(self, options: Options): ...\n"
    ),
    "none": "def Plugin(): ...\n",
}
"""Installed plugins, each with a fault of its own."""


@pytest.fixture
def faulty_site(site: Site) -> Site:
    for name, source in FAULTY.items():
        site.install(name, source, distribution=f"faulty-{name}", version="2.1")
    site.install("greeter", COMMANDS)
    for distribution in ("one-twin", "other-twin"):
        site.install("twin", OBSERVER, distribution=distribution)
    return site


def test_faulty_plugins_are_each_reported_and_take_no_command_away(
    faulty_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = hookline(capsys, "--help")
    assert code == 0
    assert all(command in out for command in ("train", "new-plugin", "greet", "runs"))
    for name in FAULTY.keys() - {"untyped"}:
        assert f"plugin {name!r} (faulty-{name} 2.1) " in err
    assert "two plugins have this name, from one-twin 1.0 and other-twin 1.0" in err
    assert "Traceback" not in err
    assert hookline(capsys, "greet", "you")[:2] == (0, "hello you\n")
    code, _, err = hookline(capsys, "greeting")
    assert code == 1
    assert (
        "hookline: the command 'greeting' of plugin 'untyped' (faulty-untyped 2.1) cannot be used: NameError: name 'Missing'"
    ) in " ".join(err.split())
    assert hookline(capsys, "hooks", "log_metrics")[0] == 0
    assert hookline(capsys, "new-plugin", "mine")[0] == 0


def test_faulty_plugins_do_not_take_the_list_of_plugins_away(
    faulty_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins = listed(capsys, faulty_site)
    brings_commands = {"number", "leaves", "raises", "untyped"}
    assert {name for name in FAULTY if plugins[name]["state"] == "failed"} == FAULTY.keys() - brings_commands
    assert plugins["greeter"]["state"] == "active"


def test_strict_makes_a_faulty_command_an_error(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKLINE_STRICT", "true")
    site.install("number", FAULTY["number"])
    assert hookline(capsys, "--help")[0] == 0
    code, _, err = hookline(capsys, "runs")
    assert code == 1
    assert "register_commands must return a dictionary of functions by name, not 3" in err
    assert "plugins failed to load, and strict = true" in err


FRAMEWORKS = ("torch", "jax", "mlx", "wandb", "tensorflow", "ray", "mlflow", "tensorboard", "trackio", "transformers")
SLOW = (
    *FRAMEWORKS,
    "numpy",
    "asyncio",
    "rich",
    "pydantic",
    "pydantic_core",
    "packaging",
    "email.message",
    "hookline.rewards",
)


@pytest.mark.parametrize("command", ["--help", "plugins", "hooks", "hooks on_epoch_end", "--version"])
def test_no_command_for_looking_around_imports_what_is_slow(
    site: Site, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_arguments = " " in command
    slow = SLOW if has_arguments else (*SLOW, "cyclopts")
    monkeypatch.delenv("HOOKLINE_DISABLE", raising=False)  # all plugins are on, trackers too
    code = (
        "import sys, atexit\n"
        "from hookline.cli import main\n"
        f"atexit.register(lambda: print('IMPORTED', *(m for m in {slow!r} if m in sys.modules)))\n"
        f"main({command.split()!r})\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert result.stdout.splitlines()[-1] == "IMPORTED"
