"""Secrets do not come through."""

import pytest

from hookline_hookspecs.redaction import REDACTED, is_secret_name, redact, redact_text


@pytest.mark.parametrize(
    "name", ["token", "auth-token", "api_key", "apiKey", "WANDB_API_KEY", "password", "client_secret", "keys"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["tokens_per_second", "monkey", "keyword_weight", "every", "keep_last", "tokenizer"])
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_are_replaced_at_any_depth_and_in_addresses() -> None:
    settings = {
        "status": {"auth": [{"token": "s3cret"}], "endpoint": "https://me:s3cret@host/path", "every": 5},
        "api_key": None,
    }
    assert redact(settings) == {
        "status": {"auth": [{"token": REDACTED}], "endpoint": f"https://{REDACTED}@host/path", "every": 5},
        "api_key": None,
    }


def test_values_of_secret_variables_are_taken_out_of_texts() -> None:
    environ = {"API_KEY": "abcdef", "LONGER_API_KEY": "abcdefghi", "AUTH_TOKEN": "1", "HOME": "nowhere"}
    text = "abcdefghi and abcdef were refused at https://me:pass@host/1 from nowhere"
    expected = f"{REDACTED} and {REDACTED} were refused at https://{REDACTED}@host/1 from nowhere"
    assert redact_text(text, environ) == expected


def test_a_secret_that_was_read_with_its_line_end_is_found_without_it() -> None:
    assert redact_text("got abcdef", {"API_KEY": "abcdef\n"}) == f"got {REDACTED}"


def test_secrets_are_those_of_this_process_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "hunter22")
    assert redact_text("login failed: hunter22") == f"login failed: {REDACTED}"
