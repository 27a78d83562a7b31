"""Secrets are redacted in data and text."""

from __future__ import annotations

import base64
import html
import json
import shlex
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline_hookspecs.redaction import (
    MIN_SECRET_LENGTH,
    REDACTED,
    forget_secrets,
    redact,
    redact_arguments,
    redact_text,
    remember_secrets,
)
from hookline_hookspecs.secret_names import is_secret_name

# -- names --------------------------------------------------------------------------------------------------------


SECRET_NAMES = """
    token auth-token auth_token hub_token HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN session_token refreshToken jwt
    api_tokens access_tokens bearer bearer_token csrf_token key api_key apiKey apikey APIKey api_keys X-API-Key
    WANDB_API_KEY OPENAI_KEY SOME_KEY access_key secret_key private_key privateKey ssh_key signing_key encryption_key
    service_key AWS_SECRET_ACCESS_KEY api_key_2 OPENAI_API_KEY_EU
    password passwd passphrase passcode pwd db_pwd db_pass DB_PASS pass PGPASSWORD MYSQL_PWD dbpassword password_hash
    PASSWORD1 secret client_secret clientSecret secret_id secrets credentials aws_credentials credential
    auth AUTH X-Auth basic_auth oauth authorization Authorization Proxy-Authorization auth.user.password
    cookie Set-Cookie cookies session_cookie dsn SENTRY_DSN AZURE_STORAGE_CONNECTION_STRING
"""
OTHER_NAMES = """
    token_count tokens max_tokens max_new_tokens num_tokens tokens_per_second train/tokens stop_tokens special_tokens
    tokenizer tokenizer_name token_ids eos_token_id pad_token eos_token bos_token unk_token mask_token per_token next_token
    keys keywords keyword_weight key_size key_dim num_keys monkey keyboard obs_key rng_key metric_key sort_key primary_key
    pass_at pass_at_k pass_rate bypass forward_pass backward_pass low_pass single_pass passes compass passing
    author authors authority authored auth_required every keep_last password_file secret_name credentials_path cookie_name
    epochs learning_rate loss seed user username host endpoint url path PWD OLDPWD PATH HOME SSH_AUTH_SOCK
    hidden_size attention_heads discretion 42
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret_name(name)


# -- data ---------------------------------------------------------------------------------------------------------


class Hidden:
    """What pydantic's `SecretStr` is to this package, which does not know pydantic."""

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        return self._value


@dataclass
class Options:
    every: int = 1
    anything: Any = None
    password: str = ""
    inner: Any = field(default_factory=dict)


def test_secrets_are_replaced_at_any_depth_and_in_addresses() -> None:
    settings = {
        "status": {"auth": [{"token": "s3cret"}], "endpoint": "https://me:s3cret@host/path", "every": 5},
        "api_key": None,
    }
    assert redact(settings) == {
        "status": {"auth": [{"token": REDACTED}], "endpoint": f"https://{REDACTED}@host/path", "every": 5},
        "api_key": None,
    }


def test_all_that_is_below_a_secret_name_is_secret() -> None:
    data = {
        "credentials": {"user": "b", "value": "S", "pin": 7, "extra": ["x", {"y": "z"}], "active": True, "no": None}
    }
    assert redact(data) == {
        "credentials": {
            "user": REDACTED,
            "value": REDACTED,
            "pin": REDACTED,
            "extra": [REDACTED, {"y": REDACTED}],
            "active": True,
            "no": None,
        }
    }
    remember_secrets({"credentials": {"user": "b", "value": "hidden-in-there"}})
    assert redact_text("b: hidden-in-there") == f"b: {REDACTED}"


def test_a_value_that_says_that_it_is_secret_is_one_by_any_name() -> None:
    assert redact({"anything": Hidden("abc"), "list": [Hidden("abc")]}) == {"anything": REDACTED, "list": [REDACTED]}
    remember_secrets(Options(anything=Hidden("unheard-of"), inner={"deeper": [Hidden("far-below")]}))
    assert redact_text("unheard-of and far-below") == f"{REDACTED} and {REDACTED}"


def test_fields_of_options_are_secret_by_their_names() -> None:
    remember_secrets(Options(every=100_000, password="by-its-name"))
    assert redact_text("by-its-name, 100000") == f"{REDACTED}, 100000"


def test_what_is_remembered_is_replaced_in_data_by_any_name() -> None:
    remember_secrets({"api_key": "abcdefgh"})
    assert redact({"note": "with abcdefgh", "abcdefgh": [("abcdefgh",)]}) == {
        "note": f"with {REDACTED}",
        REDACTED: [[REDACTED]],
    }


def test_data_whose_names_are_not_those_of_settings_is_redacted_by_value_alone() -> None:
    remember_secrets("abcdefgh", "token")
    assert redact({"key": [0, 42], "auth": "abcdefgh!"}, by_names=False) == {"key": [0, 42], "auth": f"{REDACTED}!"}


def test_data_that_is_too_deep_or_contains_itself_is_cut_off() -> None:
    endless: list[Any] = []
    endless.append(endless)
    remember_secrets(endless)
    assert REDACTED in str(redact(endless))


# -- text ---------------------------------------------------------------------------------------------------------


def test_values_of_secret_variables_are_taken_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"API_KEY": "abcdef", "LONGER_API_KEY": "abcdefghi", "AUTH_TOKEN": "1", "PLACE": "nowhere"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    text = "abcdefghi and abcdef were refused at https://me:pass@host/1 from nowhere"
    expected = f"{REDACTED} and {REDACTED} were refused at https://{REDACTED}@host/1 from nowhere"
    assert redact_text(text) == expected


def test_a_secret_that_was_read_with_its_line_end_is_found_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdef\n")
    assert redact_text("got abcdef") == f"got {REDACTED}"


def test_a_variable_that_is_set_later_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact_text("login failed: hunter22") == "login failed: hunter22"
    monkeypatch.setenv("SOME_PASSWORD", "hunter22")
    assert redact_text("login failed: hunter22") == f"login failed: {REDACTED}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h/s?api_key=S&page=2", f"http://h/s?api_key={REDACTED}&page=2"),
        ("http://h/s?page=2&token=S#access_token=S", f"http://h/s?page=2&token={REDACTED}#access_token={REDACTED}"),
        ("GET /s?X-Amz-Signature=S&n=1 failed", f"GET /s?X-Amz-Signature={REDACTED}&n=1 failed"),
        ("https://user:p@ss:word@host/x", f"https://{REDACTED}@host/x"),
        ("https://token@host/x", f"https://{REDACTED}@host/x"),
        ("postgres://user:pa/ss@host/db", f"postgres://{REDACTED}@host/db"),
        ("http://host:8080/path?mail=a@b.c", "http://host:8080/path?mail=a@b.c"),
        ("Server=db;Password=S;Port=1", f"Server=db;Password={REDACTED};Port=1"),
        ("http://h/s?max_tokens=5&key_size=8", "http://h/s?max_tokens=5&key_size=8"),
        ("sorted(rows, key=len)", "sorted(rows, key=len)"),
    ],
)
def test_addresses_are_shown_without_what_is_secret_in_them(url: str, shown: str) -> None:
    assert redact_text(url) == shown
    assert redact({"endpoint": url}) == {"endpoint": shown}


def test_secrets_in_an_address_are_known_outside_of_it() -> None:
    remember_secrets({"endpoint": "https://me:p%40ssword@host/x?api_key=in%26parameter"})
    basic = base64.b64encode(b"me:p@ssword").decode()
    text = f"p@ssword p%40ssword in&parameter Basic {basic}"
    assert redact_text(text) == f"{REDACTED} {REDACTED} {REDACTED} Basic {REDACTED}"


def test_the_name_of_a_user_in_an_address_is_a_word_elsewhere() -> None:
    remember_secrets({"database": "postgres://postgres@db/x", "index": "https://0123456789abcdef@host/"})
    assert redact_text("postgres at 0123456789abcdef") == f"postgres at {REDACTED}"
    assert redact_text("postgres://postgres@db/x") == f"postgres://{REDACTED}@db/x"


def test_a_text_that_came_before_a_secret_was_known_is_redacted_after() -> None:
    assert redact_text("loss/abcdefgh") == "loss/abcdefgh"
    remember_secrets("abcdefgh", "token")
    assert redact_text("loss/abcdefgh") == f"loss/{REDACTED}"


def test_a_header_is_known_with_and_without_its_scheme() -> None:
    remember_secrets({"headers": {"Authorization": "Bearer abcdefgh"}})
    assert redact_text("Bearer abcdefgh, abcdefgh") == f"{REDACTED}, {REDACTED}"


def test_lines_of_a_long_secret_are_found_one_by_one() -> None:
    remember_secrets(
        "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----\n", "private_key"
    )
    assert redact_text("> MIIEvQIBADANBgkqhkiG\n> 9w0BAQEFAASCBKcwggSj") == f"> {REDACTED}\n> {REDACTED}"


def test_a_short_secret_is_replaced_by_its_name_and_left_in_texts() -> None:
    remember_secrets({"token": "abc"})
    assert redact({"token": "abc"}) == {"token": REDACTED}
    assert redact_text("abcdef") == "abcdef"


def test_a_number_is_a_secret_by_itself_and_not_as_a_part_of_another() -> None:
    remember_secrets({"api_key": 48151623})
    assert redact_text("key 48151623, loss 0.48151623, step 1481516230") == (
        f"key {REDACTED}, loss 0.48151623, step 1481516230"
    )


def test_what_is_redacted_already_is_no_secret() -> None:
    remember_secrets({"api_key": REDACTED, "password": "**********"})
    assert redact_text("******** and **********") == "******** and **********"


def test_a_command_line_is_shown_without_secrets_however_short_they_are() -> None:
    given = [
        "--api-key",
        "S",
        "-o",
        "leaky.api_key=S",
        "-o",
        "leaky.credentials.user=S",
        "--token=S",
        "--epochs",
        "5",
        "x=y",
    ]
    shown = ["--api-key", REDACTED, "-o", f"leaky.api_key={REDACTED}", "-o", f"leaky.credentials.user={REDACTED}"]
    assert redact_arguments(given) == [*shown, f"--token={REDACTED}", "--epochs", "5", "x=y"]


def test_secrets_may_be_remembered_and_replaced_by_many_threads_at_once() -> None:
    barrier = threading.Barrier(4)
    leaks: list[str] = []

    def work(own: int) -> None:
        barrier.wait()
        for number in range(20):
            secret = f"secret-{own}-{number}-end"
            remember_secrets(secret, "token")
            leaks.extend(text for text in [redact_text(f"got {secret}")] if secret in text)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not leaks


# -- anything -----------------------------------------------------------------------------------------------------

SECRETS = (
    st.text(min_size=MIN_SECRET_LENGTH, max_size=30)
    .map(str.strip)
    .filter(lambda text: len(text) >= MIN_SECRET_LENGTH and text.strip("*") and not text.isdecimal())
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(SECRETS, st.text(), st.text())
def test_no_form_of_a_secret_comes_through(secret: str, before: str, after: str) -> None:
    forget_secrets()
    remember_secrets({"password": secret})
    forms = [secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]]
    forms += [html.escape(secret), shlex.quote(secret), base64.b64encode(secret.encode()).decode()]
    for form in forms:
        redacted = redact_text(f"{before} {form} {after}")
        assert secret not in redacted or secret in before + after + REDACTED
        assert REDACTED in redacted
    assert redact({"any": [secret]}) == {"any": [redact_text(secret)]} != {"any": [secret]}


@given(DATA)
def test_any_data_can_be_redacted_and_once_is_enough(data: Any) -> None:
    forget_secrets()
    remember_secrets(data)
    once = redact(data)
    assert repr(redact(once)) == repr(once)


@given(st.text())
def test_any_text_can_be_redacted_and_once_is_enough(text: str) -> None:
    forget_secrets()
    remember_secrets(text)
    assert redact_text(redact_text(text)) == redact_text(text)


@given(st.lists(st.text()))
def test_any_command_line_can_be_redacted(arguments: list[str]) -> None:
    assert len(redact_arguments(arguments)) == len(arguments)


@given(st.text(), st.text(alphabet="abc@:/?#&;=%. "))
def test_a_password_in_an_address_never_comes_through(user: str, path: str) -> None:
    forget_secrets()
    address = f"https://{quote(user, safe='')}:hidden-password@host/{path}"
    assert "hidden-password" not in redact_text(address)
    remember_secrets(address)
    assert "hidden-password" not in redact_text(f"{path} hidden-password")
