"""Secrets do not come through."""

import pytest

from hookline.redaction import REDACTED, is_secret_name, redact


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
