"""Installed plugins: found, toggled, made and registered, or left out with a reason."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import hookline_hookspecs
from hookline.plugin_manager import ConfigError, OrderError, PluginError, read_settings
from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from conftest import Site

OBSERVER = """
class Plugin:
    calls = 0

    @hookimpl
    def on_epoch_end(self, state):
        Plugin.calls += 1
"""


def test_an_installed_plugin_is_on(site: Site) -> None:
    module = site.install("observer", OBSERVER)
    manager, records = site.load()
    manager.emit.on_epoch_end(state=TrainerState())
    assert sys.modules[module].Plugin.calls == 1
    assert [(record.name, record.state, record.found.version) for record in records] == [("observer", "active", "1.0")]


def test_plugins_are_registered_in_the_order_of_their_names(site: Site) -> None:
    for name in ("zeta", "alpha", "mid"):
        site.install(name, OBSERVER)
    manager, _ = site.load()
    assert [name for name, _ in manager.list_name_plugin()] == ["alpha", "mid", "zeta"]


@pytest.mark.parametrize("how", ["pyproject", "hookline.toml", "environment", "command line", "not allowed"])
def test_a_disabled_plugin_is_never_imported(site: Site, how: str) -> None:
    module = site.install("observer", OBSERVER)
    site.install("other", OBSERVER)
    environ, arguments, text = {}, [], ""
    if how == "pyproject":
        (site.folder / "pyproject.toml").write_text('[tool.hookline]\ndisable = ["observer"]\n')
        reason = "by pyproject.toml: tool.hookline.disable"
    elif how == "hookline.toml":
        (site.folder / "hookline.toml").write_text('disable = ["observer"]\n')
        reason = "by hookline.toml: disable"
    elif how == "environment":
        environ, reason = {"HOOKLINE_DISABLE": "observer"}, "by HOOKLINE_DISABLE"
    elif how == "command line":
        arguments, reason = ["no:observer"], "by -p no:observer"
    else:
        text = '[tool.hookline]\nallow = ["other"]\n'
        (site.folder / "pyproject.toml").write_text(text)
        reason = "not allowed by pyproject.toml: tool.hookline.allow"
    _, records = site.load(read_settings(site.folder, environ=environ, plugin_arguments=arguments))
    assert module not in sys.modules
    assert [(record.name, record.state, record.reason) for record in records] == [
        ("observer", "disabled", reason),
        ("other", "active", ""),
    ]


def test_the_command_line_can_turn_a_disabled_plugin_on(site: Site) -> None:
    site.install("observer", OBSERVER)
    (site.folder / "pyproject.toml").write_text('[tool.hookline]\ndisable = ["observer"]\nallow = []\n')
    _, records = site.load(read_settings(site.folder, environ={}, plugin_arguments=["observer"]))
    assert records[0].state == "active"


def test_a_plugin_that_cannot_be_imported_is_reported_and_left_out(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("broken", "import a_module_that_does_not_exist", version="2.1")
    site.install("observer", OBSERVER)
    manager, records = site.load()
    broken = records[0]
    assert broken.state == "failed"
    assert broken.reason == ("cannot be imported: ModuleNotFoundError: No module named 'a_module_that_does_not_exist'")
    assert caplog.messages == [f"plugin 'broken' (test-broken 2.1) {broken.reason}; it is left out"]
    assert manager.has_plugin("observer")


def test_strict_makes_a_broken_plugin_an_error(site: Site) -> None:
    site.install("broken", "raise RuntimeError('at import')")
    (site.folder / "pyproject.toml").write_text("[tool.hookline]\nstrict = true\n")
    with pytest.raises(PluginError) as caught:
        site.load()
    assert str(caught.value) == (
        "plugins failed to load, and strict = true:\n"
        "  plugin 'broken' (test-broken 1.0) cannot be imported: RuntimeError: at import"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys\nsys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("class Plugin:\n    def __init__(self): raise OSError('no disk')", "cannot be constructed: OSError: no disk"),
        (
            "class Plugin:\n    @hookimpl\n    def on_epoch_ende(self): ...",
            "cannot be used: plugin 'bad' implements 'on_epoch_ende', which is not an event in hookline-hookspecs {now} "
            "(did you mean 'on_epoch_end'?)",
        ),
        (
            "class Plugin:\n    @hookimpl\n    def on_epoch_end(self, sate): ...",
            "cannot be used: plugin 'bad': on_epoch_end has an argument 'sate' that the event does not have "
            "in hookline-hookspecs {now} (did you mean 'state'?); the event is on_epoch_end(state)",
        ),
        (
            "@dataclass\nclass Options: ...\nclass Plugin:\n    def __init__(self, options: Options, path): ...",
            "cannot be used: plugin 'bad': its constructor has a parameter 'path' besides its options: "
            "make it a field of Options",
        ),
        (
            "class Plugin:\n    def __init__(self, options: 'Missing'): ...",
            "cannot be used: plugin 'bad': the types of its constructor cannot be read (name 'Missing' is not defined); "
            "import them at run time, not under TYPE_CHECKING",
        ),
        ("class Odd(BaseException): ...\nraise Odd('at import')", "cannot be imported: Odd: at import"),
        (
            "class Plugin:\n    @hookimpl\n    def on_epoch_start(self): ...\n    @hookimpl\n    def on_epoch_end(): ...",
            "cannot be used: plugin 'bad': on_epoch_end is a method without `self`: put `self` before its arguments",
        ),
        (
            "class Plugin:\n    @hookimpl\n    def on_epoch_end(state): ...",
            "cannot be used: plugin 'bad': on_epoch_end is a method without `self`: put `self` before its arguments",
        ),
        ("def Plugin(): ...", "cannot be used: plugin 'bad': its factory returned None: return the plugin"),
        (
            "from dataclasses import field\n@dataclass\nclass Options:\n    x: int = field(default_factory=lambda: 1 / 0)\n"
            "class Plugin:\n    def __init__(self, options: Options): ...",
            "cannot be configured: ZeroDivisionError: division by zero",
        ),
        (
            "class Plugin:\n    after = 'metrics'",
            "cannot be used: plugin 'bad': after must be a tuple of plugin names, such as ('metrics',), not 'metrics'",
        ),
    ],
)
def test_a_plugin_with_a_fault_says_what_it_is_and_leaves_nothing_behind(site: Site, source: str, reason: str) -> None:
    site.install("bad", source)
    site.install("good", OBSERVER)
    manager, (record, good) = site.load()
    assert (record.state, record.reason) == ("failed", reason.replace("{now}", hookline_hookspecs.__version__))
    assert good.state == "active"
    assert [name for name, _ in manager.list_name_plugin()] == ["good"]
    assert not manager.hook.on_epoch_start.get_hookimpls()


def test_two_plugins_of_one_name_are_an_error_before_either_is_imported(site: Site) -> None:
    modules = [
        site.install("twin", OBSERVER, distribution="one-twin", version="1.0"),
        site.install("twin", OBSERVER, distribution="other-twin", version="2.0"),
    ]
    with pytest.raises(ConfigError) as caught:
        site.load(read_settings(site.folder, environ={"HOOKLINE_ALLOW": "twin"}))
    assert [str(fault) for fault in caught.value.faults] == [
        "plugin 'twin': two plugins have this name, from one-twin 1.0 and other-twin 2.0: uninstall one, or disable it "
        'by disable = ["twin@other-twin"] or -p no:twin@other-twin'
    ]
    assert not sys.modules.keys() & modules


@pytest.mark.parametrize(
    ("text", "environ", "arguments"),
    [
        ('disable = ["twin@Other_Twin"]', {}, []),
        ("", {"HOOKLINE_DISABLE": "twin@other-twin"}, []),
        ("", {}, ["no:twin@other-twin"]),
        ('allow = ["twin@one-twin"]', {}, []),
        ('disable = ["twin"]', {}, ["twin@one-twin"]),
        ('disable = ["twin@one-twin"]', {}, ["twin", "no:twin@other-twin"]),
    ],
)
def test_one_of_two_plugins_of_one_name_is_turned_off_by_its_distribution(
    site: Site, text: str, environ: dict[str, str], arguments: list[str]
) -> None:
    site.install("twin", OBSERVER, distribution="one-twin")
    module = site.install("twin", OBSERVER, distribution="other-twin")
    (site.folder / "hookline.toml").write_text(text)
    _, records = site.load(read_settings(site.folder, environ=environ, plugin_arguments=arguments))
    assert [(record.found.distribution, record.state) for record in records] == [
        ("one-twin", "active"),
        ("other-twin", "disabled"),
    ]
    assert module not in sys.modules


def test_a_distribution_that_does_not_bring_the_plugin_is_a_fault(site: Site) -> None:
    site.install("twin", OBSERVER, distribution="one-twin")
    with pytest.raises(ConfigError, match="-p no:twin@two: plugin 'twin' comes from one-twin, not from 'two'"):
        site.load(read_settings(site.folder, environ={}, plugin_arguments=["no:twin@two"]))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("[hookline]\nbroken\n", "the metadata in {} cannot be read: TypeError"),
        ("[hookline]\n\xff = x\n", "the metadata in {} cannot be read: UnicodeDecodeError"),
        ("[hookline]\nbroken = no reference!\n", "cannot be imported: ValueError"),
        (None, "the metadata in {} cannot be read: FileNotFoundError: there is no METADATA in it"),
    ],
)
def test_a_distribution_whose_metadata_is_damaged_hides_no_other(site: Site, damage: str | None, reason: str) -> None:
    site.install("broken", OBSERVER, distribution="broken")
    site.install("observer", OBSERVER)
    info = site.folder / "broken-1.0.dist-info"
    if damage is None:
        (info / "METADATA").unlink()
    else:
        (info / "entry_points.txt").write_text(damage, encoding="latin-1")
    (site.folder / "unrelated-1.0.dist-info").mkdir()
    manager, (broken, _) = site.load()
    assert broken.reason.removeprefix("cannot be used: ").startswith(reason.format(info))
    assert str(broken.found) == "'broken' (broken 1.0)"
    assert manager.has_plugin("observer")


def test_a_requirement_that_failed_or_is_disabled_is_an_error_that_says_so(site: Site) -> None:
    site.install("best", OBSERVER + "\n    requires = ('base',)\n")
    site.install("base", OBSERVER)
    with pytest.raises(OrderError, match="plugin 'best' requires 'base', which is disabled: by -p no:base"):
        site.load(read_settings(site.folder, environ={}, plugin_arguments=["no:base"]))


def test_a_requirement_that_is_not_installed_is_an_error_with_the_nearest(site: Site) -> None:
    site.install("best", OBSERVER + "\n    requires = ('basis',)\n")
    site.install("base", OBSERVER)
    with pytest.raises(
        OrderError, match=r"plugin 'best' requires 'basis', which is not installed \(did you mean 'base'\?\)"
    ):
        site.load()


def test_a_required_plugin_is_registered_before_the_one_that_requires_it(site: Site) -> None:
    site.install("a-user", OBSERVER + "\n    requires = ('z-base',)\n")
    site.install("z-base", OBSERVER)
    manager, _ = site.load()
    assert [name for name, _ in manager.list_name_plugin()] == ["z-base", "a-user"]


def test_a_cycle_among_installed_plugins_is_an_error_that_names_both(site: Site) -> None:
    site.install("a", OBSERVER + "\n    after = ('b',)\n")
    site.install("b", OBSERVER + "\n    after = ('a',)\n")
    with pytest.raises(OrderError, match="'a' is after 'b', 'b' is after 'a'"):
        site.load()


def test_a_module_can_be_a_plugin(site: Site) -> None:
    module = site.install(
        "module", "calls = []\n@hookimpl\ndef on_epoch_end(state):\n    calls.append(state.epoch)\n", target=""
    )
    manager, _ = site.load()
    manager.emit.on_epoch_end(state=TrainerState(epoch=4))
    assert sys.modules[module].calls == [4]


def test_a_function_can_make_the_plugin(site: Site) -> None:
    source = OBSERVER.replace("class Plugin", "class Made").replace("Plugin.calls", "Made.calls")
    site.install("made", source + "\ndef Plugin():\n    return Made()\n")
    manager, (record,) = site.load()
    assert record.state == "active"
    assert type(manager.get_plugin("made")).__name__ == "Made"


def test_a_plugin_gets_the_managers_emit_when_it_asks_for_it(site: Site) -> None:
    source = """
class Plugin:
    def __init__(self, emit):
        self.emit = emit

    @hookimpl
    def on_epoch_end(self, state):
        self.emit.on_evaluation_end(state=state, scores={"x": 1.0})

    @hookimpl
    def on_evaluation_end(self, scores):
        self.scores = scores
"""
    site.install("emitter", source)
    manager, _ = site.load()
    manager.emit.on_epoch_end(state=TrainerState())
    assert manager.get_plugin("emitter").scores == {"x": 1.0}
