"""Configuration from five places, and what is said when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hookline.plugin_manager import ConfigError, open_plugins, read_settings
from hookline.plugin_manager.settings import Settings
from hookline_hookspecs import TrainerState

if TYPE_CHECKING:
    from conftest import Site

SAVER = """
@dataclass
class Retention:
    keep_last: int = 3
    keep_best: int = 0

@dataclass
class Options:
    folder: str = "checkpoints"
    compress: bool = False
    retention: Retention = None

class Plugin:
    def __init__(self, options: Options):
        self.options = options
        self.seen = []

    @hookimpl(every=10)
    def on_epoch_end(self, state):
        self.seen.append(state.epoch)
"""
WITH_PYDANTIC = """
from pydantic import BaseModel, Field

class Options(BaseModel):
    patience: int = Field(3, ge=1)

class Plugin:
    def __init__(self, options: Options):
        self.patience = options.patience

    @hookimpl
    def on_epoch_end(self): ...
"""


def write(folder: Path, text: str, name: str = "pyproject.toml") -> None:
    (folder / name).write_text(text)


def faults(site: Site, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        site.load(read_settings(site.folder, **{"environ": {}, **arguments}))
    return [str(fault) for fault in caught.value.faults]


def epochs_seen(site: Site, **arguments: Any) -> list[int]:
    manager, _ = site.load(read_settings(site.folder, **{"environ": {}, **arguments}))
    for epoch in range(31):
        manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
    return manager.get_plugin("saver").seen


def test_options_reach_the_plugin_as_its_own_dataclass(site: Site) -> None:
    site.install("saver", SAVER)
    write(site.folder, '[tool.hookline.plugins.saver]\nfolder = "here"\nretention = { keep_best = 2 }\n')
    manager, _ = site.load()
    options = manager.get_plugin("saver").options
    assert (options.folder, options.compress, options.retention.keep_last, options.retention.keep_best) == (
        "here",
        False,
        3,
        2,
    )


def test_options_can_be_a_pydantic_model(site: Site) -> None:
    site.install("guard", WITH_PYDANTIC)
    write(site.folder, "[tool.hookline.plugins.guard]\npatience = 5\n")
    manager, _ = site.load()
    assert manager.get_plugin("guard").patience == 5


def test_the_later_place_wins_and_the_others_keep_what_it_does_not_say(site: Site) -> None:
    site.install("saver", SAVER)
    write(site.folder, '[tool.hookline.plugins.saver]\nfolder = "a"\ncompress = true\nretention.keep_last = 1\n')
    write(site.folder, '[plugins.saver]\nfolder = "b"\nretention.keep_best = 9\n', "hookline.toml")
    settings = read_settings(
        site.folder,
        environ={"HOOKLINE_OPTIONS": "saver.folder=c saver.retention.keep_last=4"},
        option_arguments=["saver.folder=d"],
    )
    manager, _ = site.load(settings)
    options = manager.get_plugin("saver").options
    assert (options.folder, options.compress, options.retention.keep_last, options.retention.keep_best) == (
        "d",
        True,
        4,
        9,
    )


def test_the_nearest_folder_with_settings_counts(site: Site) -> None:
    site.install("saver", SAVER)
    inner = site.folder / "project" / "scripts"
    inner.mkdir(parents=True)
    write(site.folder / "project", '[tool.hookline.plugins.saver]\nfolder = "near"\n')
    write(inner, '[project]\nname = "without-hookline"\n')
    write(site.folder, '[tool.hookline.plugins.saver]\nfolder = "far"\n')
    manager, _ = site.load(read_settings(inner, environ={}))
    assert manager.get_plugin("saver").options.folder == "near"


@pytest.mark.parametrize(
    ("text", "value"),
    [("saver.folder=plain", "plain"), ("saver.folder='quoted text'", "quoted text"), ("saver.folder=5", None)],
)
def test_a_value_on_the_command_line_is_toml_or_plain_text(site: Site, text: str, value: str | None) -> None:
    site.install("saver", SAVER)
    if value is None:
        assert faults(site, option_arguments=[text]) == ["-o saver.folder: input should be a valid string, got 5"]
    else:
        manager, _ = site.load(read_settings(site.folder, environ={}, option_arguments=[text]))
        assert manager.get_plugin("saver").options.folder == value


# -- schedules and policies from config --


def test_config_replaces_a_plugins_schedule(site: Site) -> None:
    site.install("saver", SAVER)
    write(site.folder, "[tool.hookline.plugins.saver]\nevery = 15\n")
    assert epochs_seen(site) == [14, 29]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("12", [11, 23]),
        ("{ every = 5, start = 10, stop = 20 }", [14, 19]),
        ("{ cycle = 10, active = [0, 9] }", [8, 9, 18, 19, 28, 29]),
        ("{ at = [3, 4] }", [2, 3]),
    ],
)
def test_config_gives_one_event_any_schedule(site: Site, schedule: str, expected: list[int]) -> None:
    site.install("saver", SAVER)
    write(site.folder, f"[tool.hookline.plugins.saver]\nschedule.on_epoch_end = {schedule}\n")
    assert epochs_seen(site) == expected


def test_an_option_of_the_plugins_own_called_every_is_the_plugins(site: Site) -> None:
    site.install("own", SAVER.replace('folder: str = "checkpoints"', "every: int = 1"))
    write(site.folder, "[tool.hookline.plugins.own]\nevery = 4\n")
    manager, _ = site.load()
    assert manager.get_plugin("own").options.every == 4


def test_config_sets_the_error_policy(site: Site) -> None:
    site.install(
        "fragile", "class Plugin:\n    @hookimpl\n    def on_epoch_end(self):\n        raise ValueError('no')\n"
    )
    write(site.folder, '[tool.hookline.plugins.fragile]\non_error = "raise"\n')
    manager, _ = site.load()
    with pytest.raises(ValueError, match="no") as caught:
        manager.emit.on_epoch_end(state=TrainerState())
    assert caught.value.__notes__ == ["raised by plugin 'fragile' (test-fragile 1.0) in on_epoch_end"]


# -- what is said when it is wrong --


def test_several_faults_are_reported_at_once_each_with_file_and_key(site: Site) -> None:
    site.install("saver", SAVER)
    site.install("guard", WITH_PYDANTIC)
    write(
        site.folder,
        """
[tool.hookline]
disable = ["savr"]
required = ["guard>=2", "missing"]

[tool.hookline.plugins.saver]
foldr = "x"
compress = "perhaps"
retention = { keep_lst = 1 }

[tool.hookline.plugins.guard]
patience = 0
""",
    )
    assert faults(site) == [
        "pyproject.toml: tool.hookline.disable: no installed plugin is called 'savr' (did you mean 'saver'?)",
        "pyproject.toml: tool.hookline.plugins.guard.patience: input should be greater than or equal to 1, got 0",
        "pyproject.toml: tool.hookline.plugins.saver.compress: input should be a valid boolean, unable to interpret "
        "input, got 'perhaps'",
        "pyproject.toml: tool.hookline.plugins.saver.retention.keep_lst: unknown key 'keep_lst' (did you mean 'keep_last'?)",
        "pyproject.toml: tool.hookline.plugins.saver.foldr: unknown key 'foldr' (did you mean 'folder'?)",
        "pyproject.toml: tool.hookline.required: plugin 'guard>=2' is required, but 1.0 is installed",
        "pyproject.toml: tool.hookline.required: plugin 'missing' is required, but not installed",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '[tool.hookline]\nallow = ["savr"]',
            "pyproject.toml: tool.hookline.allow: no installed plugin is called 'savr'",
        ),
        (
            '[tool.hookline]\nrequired = ["savr"]',
            "plugin 'savr' is required, but not installed (did you mean 'saver'?)",
        ),
        (
            "[tool.hookline.plugins.savr]",
            "pyproject.toml: tool.hookline.plugins.savr: no installed plugin is called 'savr'",
        ),
        (
            '[tool.hookline]\ndisabel = ["x"]',
            "pyproject.toml: tool.hookline.disabel: unknown key 'disabel' (did you mean 'disable'?)",
        ),
        (
            '[tool.hookline]\ndisable = "saver"',
            "pyproject.toml: tool.hookline.disable: input should be a valid list, got 'saver'",
        ),
        ("[tool.hookline]\nstrict = 7", "pyproject.toml: tool.hookline.strict: input should be a valid boolean"),
        (
            '[tool.hookline]\nrequired = ["saver=>1"]',
            "'saver=>1' is not a plugin name with an optional version, such as",
        ),
        (
            "[tool.hookline]\nrequired = ['saver']\ndisable = ['saver']",
            "plugin 'saver' is required, but it is disabled: by",
        ),
        (
            "[tool.hookline\n",
            "pyproject.toml: is not valid TOML: Expected ']' at the end of a table declaration (at line 1",
        ),
        (
            "[tool.hookline.plugins.saver]\nevery = 0",
            "saver.every: is not a schedule: Every(n) needs a whole number of",
        ),
        (
            "[tool.hookline.plugins.saver]\nevery = 'x'",
            "saver.every: is not a schedule: Every(n) needs a whole number of",
        ),
        ("[tool.hookline.plugins.saver]\nschedule = 5", "saver.schedule: must be a table of events"),
        (
            "[tool.hookline.plugins.saver]\nschedule.on_epoch_ent = 5",
            "saver.schedule.on_epoch_ent: plugin 'saver' does not implement it (did you mean 'on_epoch_end'?)",
        ),
        (
            "[tool.hookline.plugins.saver]\nschedule.on_epoch_end = {evry = 5}",
            "is not a schedule: use a number, {every,",
        ),
        (
            "[tool.hookline.plugins.saver]\non_error = 'rise'",
            "saver.on_error: must be 'raise', 'warn' or 'disable', got 'rise' (did you mean 'raise'?)",
        ),
    ],
)
def test_a_fault_in_the_file_names_the_file_the_key_and_the_nearest(site: Site, text: str, expected: str) -> None:
    site.install("saver", SAVER)
    write(site.folder, text)
    (fault,) = faults(site)
    assert expected in fault


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"plugin_arguments": ["no:savr"]}, "-p no:savr: no installed plugin is called 'savr' (did you mean 'saver'?)"),
        ({"plugin_arguments": ["savr"]}, "-p savr: no installed plugin is called 'savr' (did you mean 'saver'?)"),
        ({"option_arguments": ["savr.folder=x"]}, "-o savr.folder: no installed plugin is called 'savr'"),
        ({"option_arguments": ["folder=x"]}, "-o folder: is not of the form PLUGIN.KEY=VALUE"),
        ({"environ": {"HOOKLINE_DISABLE": "savr"}}, "HOOKLINE_DISABLE: no installed plugin is called 'savr'"),
        ({"environ": {"HOOKLINE_STRICT": "perhaps"}}, "HOOKLINE_STRICT: input should be a valid boolean"),
        (
            {"environ": {"HOOKLINE_DISABEL": "x"}},
            "HOOKLINE_DISABEL: is not a setting (did you mean 'HOOKLINE_DISABLE'?)",
        ),
        (
            {"environ": {"HOOKLINE_OPTIONS": "saver.foldr=x"}},
            "saver.foldr: unknown key 'foldr' (did you mean 'folder'?)",
        ),
        (
            {"option_arguments": ["saver.retention.keep_lst=1"]},
            "-o saver.retention.keep_lst: unknown key 'keep_lst' (did you mean 'keep_last'?)",
        ),
        (
            {"option_arguments": ["saver.schedule.on_epoch_ent=5"]},
            "-o saver.schedule.on_epoch_ent: plugin 'saver' does not implement it (did you mean 'on_epoch_end'?)",
        ),
    ],
)
def test_a_fault_outside_of_files_names_its_place_too(site: Site, arguments: dict[str, Any], expected: str) -> None:
    site.install("saver", SAVER)
    (fault,) = faults(site, **arguments)
    assert expected in fault


def test_options_that_do_not_fit_together_are_a_fault_that_names_all_that_are_set(site: Site) -> None:
    check = "    def __post_init__(self):\n        if self.low > self.high:\n            raise ValueError('low is above high')"
    options = f"@dataclass\nclass Options:\n    low: int = 0\n    high: int = 9\n{check}\n"
    body = "    def __init__(self, options: Options): ...\n    @hookimpl\n    def on_epoch_end(self): ...\n"
    site.install("range", f"{options}\nclass Plugin:\n{body}")
    write(site.folder, "[tool.hookline.plugins.range]\nhigh = 4\n")
    assert faults(site, option_arguments=["range.low=5"]) == [
        "pyproject.toml: tool.hookline.plugins.range.high, -o range.low: low is above high"
    ]


def test_options_in_the_environment_that_cannot_be_split_are_an_error(site: Site) -> None:
    (fault,) = faults(site, environ={"HOOKLINE_OPTIONS": "saver.folder='open"})
    assert fault.startswith("HOOKLINE_OPTIONS: cannot be split into options (No closing quotation)")


def test_settings_in_hookline_toml_under_tool_are_an_error(site: Site) -> None:
    write(site.folder, '[tool.hookline]\ndisable = ["x"]\n', "hookline.toml")
    assert faults(site) == [
        "hookline.toml: tool: in hookline.toml the keys are at the top level, not under [tool.hookline]"
    ]


def test_options_for_a_plugin_that_takes_none_are_an_error(site: Site) -> None:
    site.install("simple", "class Plugin:\n    @hookimpl\n    def on_epoch_end(self): ...\n")
    assert faults(site, option_arguments=["simple.x=1"]) == ["-o simple.x: plugin 'simple' takes no options"]


def test_every_for_a_plugin_without_a_schedule_says_how_to_give_it_one(site: Site) -> None:
    site.install("simple", "class Plugin:\n    @hookimpl\n    def on_epoch_end(self): ...\n")
    assert faults(site, option_arguments=["simple.every=5"]) == [
        "-o simple.every: plugin 'simple' has no schedule; give an event one by schedule.on_epoch_end"
    ]


def test_an_option_without_a_default_must_be_given(site: Site) -> None:
    site.install("strict", SAVER.replace('folder: str = "checkpoints"', "folder: str"))
    assert faults(site) == ["[tool.hookline.plugins.strict] folder: is required"]


def test_a_file_that_is_not_text_is_an_error_that_names_it(site: Site) -> None:
    (site.folder / "pyproject.toml").write_bytes(b"\xff\xfe\x00")
    (fault,) = faults(site)
    assert fault.startswith("pyproject.toml: is not valid TOML")


def test_the_managers_limits_come_from_the_settings(site: Site) -> None:
    write(site.folder, "[tool.hookline]\nbackground_capacity = 16\ndrain_seconds = 0\n")
    settings = read_settings(site.folder, environ={})
    assert (settings.background_capacity, settings.drain_seconds) == (16, 0.0)


def test_open_plugins_makes_a_manager_by_the_settings_of_this_folder(site: Site) -> None:
    site.install("saver", SAVER)
    write(site.folder, '[tool.hookline]\nallow = ["saver"]\n[tool.hookline.plugins.saver]\nfolder = "mine"\n')
    with open_plugins(rank=1) as manager:
        assert manager.rank == 1
        assert manager.get_plugin("saver").options.folder == "mine"
        assert [name for name, _ in manager.list_name_plugin()] == ["saver"]


SECRETIVE = """
@dataclass
class Options:
    size: int = 1
    folder: str = "here"
    api_key: str = ""
    default_token: str = "sesame"

class Plugin:
    def __init__(self, options: Options):
        self.options = options

    @hookimpl(every=2)
    def on_epoch_end(self, state): ...
"""


@pytest.fixture
def resumable(site: Site) -> Site:
    site.install("saver", SECRETIVE)
    site.install("quiet", SECRETIVE)
    return site


def resumed(site: Site, began_with: dict[str, object], *arguments: str, **environ: str) -> Settings:
    """The settings of a run that began with some options of the plugin, and is resumed with others."""
    file = site.folder / "config.json"
    file.write_text(json.dumps({"plugins": {"saver": {"options": began_with}}, "disabled": ["quiet", "uninstalled"]}))
    return read_settings(site.folder, environ=environ, option_arguments=arguments, recorded=file)


def test_a_resumed_run_has_the_options_that_it_began_with_but_for_the_command_line(resumable: Site) -> None:
    began_with = {"size": 5, "folder": "there", "every": 9, "default_token": "********", "gone_since": 1}
    write(resumable.folder, '[tool.hookline.plugins.saver]\nfolder = "elsewhere"\n')
    settings = resumed(resumable, began_with, "saver.size=6", HOOKLINE_OPTIONS="saver.size=7")
    manager, records = resumable.load(settings)
    assert [(record.name, record.state) for record in records] == [("quiet", "disabled"), ("saver", "active")]
    options = manager.get_plugin("saver").options
    assert (options.size, options.folder, options.default_token) == (6, "there", "sesame")
    assert str(manager.implementations_of("saver")[0].schedule) == "every 9"
    assert settings.notes == [
        "HOOKLINE_OPTIONS: saver.size is ignored: the resumed run keeps its recorded size = 5; change it by -o saver.size=...",
        'pyproject.toml: tool.hookline.plugins.saver.folder is ignored: the resumed run keeps its recorded folder = "there"; '
        "change it by -o saver.folder=...",
        "changed: saver.size 5 -> 6",
    ]


def test_a_secret_that_a_run_began_with_must_be_given_again(resumable: Site) -> None:
    began_with: dict[str, object] = {"api_key": "********"}
    with pytest.raises(ConfigError) as caught:
        resumable.load(resumed(resumable, began_with))
    assert [str(fault) for fault in caught.value.faults] == [
        "saver.api_key: contains a secret, which is not saved with the run. Set it again to resume: "
        "-o saver.api_key=..., the environment or the config file"
    ]
    for settings in (
        resumed(resumable, began_with, "saver.api_key=S3CRET"),
        resumed(resumable, began_with, HOOKLINE_OPTIONS="saver.api_key=S3CRET"),
    ):
        manager, _ = resumable.load(settings)
        assert manager.get_plugin("saver").options.api_key == "S3CRET"
        assert not any("S3CRET" in note for note in settings.notes)


def test_the_mask_of_a_secret_is_never_a_value(resumable: Site) -> None:
    with pytest.raises(ConfigError, match=r"-o saver.api_key: \*{8} is a redacted secret"):
        resumable.load(resumed(resumable, {}, "saver.api_key=********"))
