"""Secrets in options reach the plugin, and nothing else."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from hookline.cli.app import main
from hookline.cli.train_output import LogHandler
from hookline.plugin_manager import ConfigError, read_settings
from hookline.plugin_manager.listing import list_plugins
from hookline.plugin_manager.settings import Settings
from hookline_hookspecs.redaction import REDACTED, redact_text, remember_secrets

if TYPE_CHECKING:
    from conftest import Site

VAULT = """
from typing import Annotated, Any
from pydantic import BaseModel, Field, SecretStr, field_validator

class Account(BaseModel):
    name: str = ""
    code: SecretStr | None = None

class Options(BaseModel):
    plain: Annotated[SecretStr, Field(alias="hidden")] = SecretStr("")
    several: list[SecretStr] = []
    accounts: list[Account] = []
    by_name: dict[str, SecretStr] = {}
    anything: Any = None

    @field_validator("plain")
    @classmethod
    def is_long(cls, value):
        if value.get_secret_value() == "refused-value":
            raise ValueError(f"{value.get_secret_value()} is too easy to guess")
        return value

class Plugin:
    def __init__(self, options: Options):
        self.options = options

    @hookimpl
    def register_commands(self):
        return {"give-up": give_up}

def give_up():
    raise SystemExit("gave up on declared-1")
"""
GIVEN = {
    "hidden": "declared-1",
    "several": ["declared-2"],
    "accounts": [{"name": "shown-name", "code": "declared-3"}],
    "by_name": {"a": "declared-4"},
    "anything": {"credentials": {"user": "declared-5"}},
}
TEXT = "declared-1 declared-2 declared-3 declared-4 declared-5 shown-name"
SHOWN = " ".join([REDACTED] * 5) + " shown-name"


def test_secrets_that_a_model_declares_are_known_at_any_depth_and_reach_the_plugin(site: Site) -> None:
    site.install("vault", VAULT)
    manager, records = site.load(Settings(options={"vault": GIVEN}))
    options = manager.get_plugin("vault").options
    assert options.plain.get_secret_value() == "declared-1"
    assert options.accounts[0].code.get_secret_value() == "declared-3"
    assert options.anything == {"credentials": {"user": "declared-5"}}
    assert redact_text(TEXT) == SHOWN
    (listing,) = list_plugins(manager, records)
    listed = json.dumps(listing.options)
    assert "declared" not in listed
    assert "shown-name" in listed


def test_what_is_wrong_with_a_declared_secret_is_told_without_it(site: Site) -> None:
    site.install("vault", VAULT)
    wrong = {"hidden": "refused-value", "accounts": [{"code": ["in-a-list"]}], "by_name": {"a": {"b": "in-a-table"}}}
    with pytest.raises(ConfigError) as caught:
        site.load(Settings(options={"vault": wrong}))
    assert [str(fault) for fault in caught.value.faults] == [
        f"[tool.hookline.plugins.vault] hidden: {REDACTED} is too easy to guess, got {REDACTED!r}",
        f"[tool.hookline.plugins.vault] accounts.0.code: input should be a valid string, got [{REDACTED!r}]",
        "[tool.hookline.plugins.vault] by_name.a: input should be a valid string",
    ]


def test_secrets_in_a_dataclass_are_listed_as_such(site: Site) -> None:
    source = """
    from pydantic import SecretStr

    @dataclass
    class Options:
        code: SecretStr = None
        password: str = ""

    class Plugin:
        def __init__(self, options: Options): ...
    """
    site.install("vault", source)
    manager, records = site.load(Settings(options={"vault": {"code": "declared-1", "password": "abc"}}))
    (listing,) = list_plugins(manager, records)
    assert listing.options == {"code": REDACTED, "password": REDACTED}
    assert redact_text("declared-1") == REDACTED


def test_all_options_at_once_are_not_told_with_a_fault_of_theirs(site: Site) -> None:
    source = """
    @dataclass
    class Options:
        address: str = ""

        def __post_init__(self):
            raise ValueError("the address is bad")

    class Plugin:
        def __init__(self, options: Options): ...
    """
    site.install("vault", source)
    with pytest.raises(ConfigError) as caught:
        site.load(read_settings(site.folder, environ={}, option_arguments=["vault.address=anything"]))
    assert str(caught.value.faults[0]).endswith(": the address is bad")


def test_the_last_words_of_a_command_have_no_secrets(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("vault", VAULT)
    (site.folder / "hookline.toml").write_text('allow = ["vault"]\n[plugins.vault]\nhidden = "declared-1"')
    with pytest.raises(SystemExit) as caught:
        main(["give-up"])
    assert caught.value.code == f"gave up on {REDACTED}"


@pytest.mark.parametrize("error", [None, ValueError("abcdefgh")])
def test_the_command_line_shows_the_records_of_other_libraries_without_secrets(error: Any) -> None:
    remember_secrets("abcdefgh", "token")
    info = None if error is None else (ValueError, error, None)
    record = logging.LogRecord("httpx", logging.INFO, "", 1, "POST http://h/?key=%s abcdefgh", ("S",), info)
    shown = LogHandler().format(record)
    assert shown.startswith(f"POST http://h/?key={REDACTED} {REDACTED}")
    assert "abcdefgh" not in shown
    assert "abcdefgh" in str(record.msg), "the record itself is another library's"
