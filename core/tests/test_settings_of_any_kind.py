"""Settings of any kind: what is wrong with them is told with its place, and never by a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.plugin_manager import ConfigError, read_settings
from hookline.plugin_manager.settings import ENVIRONMENT, Settings, _add_table
from hookline.plugin_manager.settings import KEYS as KEYS_OF_SETTINGS
from hookline.plugin_manager.settings_schema import Schema

if TYPE_CHECKING:
    from conftest import Site

SAVER = """
@dataclass
class Options:
    folder: str = "checkpoints"

class Plugin:
    def __init__(self, options: Options): ...
"""


def faults(site: Site, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        site.load(read_settings(site.folder, **{"environ": {}, **arguments}))
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    "text",
    [
        "[plugins.saver]\nfolder = " + "[" * 20_000 + "]" * 20_000,  # which the parser gives up
        "[plugins.saver]\nfolder" + ".a" * 2_000 + " = 1",  # which it does not
        "[plugins.saver]\nfolder = " + "[" * 40 + "]" * 40,
    ],
)
def test_a_file_that_is_nested_too_deeply_is_an_error_that_names_it(site: Site, text: str) -> None:
    site.install("saver", SAVER)
    (site.folder / "hookline.toml").write_text(text)
    (fault,) = faults(site)
    assert fault.startswith("hookline.toml")
    assert fault.endswith(": is nested more than 32 levels deep")


@pytest.mark.parametrize("argument", ["saver.folder=" + "[" * 20_000, "saver.folder" + ".a" * 2_000 + "=1"])
def test_an_option_that_is_nested_too_deeply_is_an_error_that_names_it(site: Site, argument: str) -> None:
    site.install("saver", SAVER)
    for place in ({"option_arguments": [argument]}, {"environ": {"HOOKLINE_OPTIONS": argument}}):
        (fault,) = faults(site, **place)
        assert "saver.folder" in fault
        assert fault.endswith(": is nested more than 32 levels deep")
        assert len(fault) < 300


TABLES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYS = st.sampled_from(sorted(Schema.model_fields))


def test_every_key_of_the_schema_is_read() -> None:
    assert sorted(KEYS_OF_SETTINGS) == sorted(Schema.model_fields)


@given(TABLES | st.dictionaries(KEYS | st.text(max_size=5), TABLES | st.dictionaries(st.text(max_size=5), TABLES)))
def test_any_table_gives_settings_and_faults_that_name_a_key(table: Any) -> None:
    settings = Settings()
    _add_table(settings, table, "hookline.toml: ", Path())
    assert all(str(fault).startswith("hookline.toml: ") for fault in settings.faults)


@given(st.binary() | st.text(alphabet="[]{}=.\"'#\n ab1,_-:\\").map(str.encode))
def test_any_file_gives_settings_or_a_fault_that_names_it(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hookline.toml").write_bytes(content)
        settings = read_settings(folder, environ={})
    assert all("hookline.toml" in str(fault) for fault in settings.faults)


@given(st.lists(st.text()), st.dictionaries(st.sampled_from(list(ENVIRONMENT)), st.text()))
def test_any_arguments_and_variables_give_settings_or_faults(arguments: list[str], environ: dict[str, str]) -> None:
    settings = read_settings(
        Path("/"),
        environ=environ,
        plugin_arguments=arguments,
        option_arguments=[*arguments, *map("a.b={}".format, arguments)],
    )
    assert all(str(fault) for fault in settings.faults)


WORDS = st.text(alphabet="abc_-", min_size=1)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=5), st.text() | st.integers() | st.booleans() | st.lists(st.text()))
def test_an_option_on_the_command_line_arrives_as_it_was_given(plugin: str, path: list[str], value: Any) -> None:
    # JSON is TOML for these, but for the delete character, which TOML wants escaped.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    settings = read_settings(Path("/"), environ={}, option_arguments=[f"{plugin}.{'.'.join(path)}={text}"])
    found: Any = settings.options[plugin]
    for key in path:
        found = found[key]
    assert (found, settings.faults) == (value, [])
