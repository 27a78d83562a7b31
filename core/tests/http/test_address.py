"""URLs and tokens are checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.http.requests import TokenError, read_token, shown_url, url_problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host/status", None),
        ("https://[::1]:8080/x?key=1", None),
        (5, "must be a string, got int"),
        ("", "must be an http or https URL with a host, got ''"),
        ("ftp://host/x?key=hunter2", "must be an http or https URL with a host, got 'ftp://host/x'"),
        ("localhost:8080/x?key=hunter2", "must be an http or https URL with a host, got 'localhost:8080/x'"),
        ("http:///x", "must be an http or https URL with a host, got 'http:///x'"),
        ("http://host:port/", "is not a URL: Port could not be cast to integer value as 'port'"),
        ("http://host/a\r\nb", "has a space, a control character or a non-ASCII letter: percent-encode it"),
        (
            "http://u:hunter2@host/",
            "has a user name or password in it: put a token into the environment variable T instead",
        ),
    ],
)
def test_what_is_no_good_url_is_said_without_its_secrets(url: Any, problem: str | None) -> None:
    assert url_problem(url, "T") == problem


def test_a_url_is_shown_without_query_and_password() -> None:
    assert shown_url("https://u:p@host:1/path?key=k") == "https://host:1/path"


def test_a_token_is_read_without_the_line_end_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", "token\r\n")
    assert read_token("T") == "token"
    monkeypatch.setenv("T", " ")
    assert read_token("T") is None
    monkeypatch.delenv("T")
    assert read_token("T") is None


@pytest.mark.parametrize("token", ["a\r\nX-Other: b", "a b", "größe"])
def test_a_token_that_breaks_out_of_its_header_is_an_error(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", token)
    with pytest.raises(TokenError, match="T has a space, a control character or a non-ASCII letter"):
        read_token("T")
