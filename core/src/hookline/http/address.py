"""Where requests go and what they carry: URLs that are fit for use, and tokens from the environment."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

from hookline_hookspecs import HooklineError

__all__ = ["TokenError", "read_token", "shown_url", "url_problem"]

_NOT_PRINTABLE_ASCII = re.compile(r"[^\x21-\x7e]")


class TokenError(HooklineError, ValueError):
    """A token that cannot be sent as a header."""


def url_problem(url: Any, token_variable: str) -> str | None:
    """What is wrong with a URL, to come after the name of its setting; None for nothing.

    No message repeats a password or a query.
    """
    if not isinstance(url, str):
        return f"must be a string, got {type(url).__name__}"
    if _NOT_PRINTABLE_ASCII.search(url):
        return "has a space, a control character or a letter that an address must have encoded"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is not a URL: {error}"
    if "@" in parts.netloc:
        return f"has a user name or password in it: put a token into the environment variable {token_variable} instead"
    if parts.scheme not in ("http", "https") or not host:
        return f"must be an http or https URL with a host, got {shown_url(url)!r}"
    return None


def shown_url(url: str) -> str:
    """A URL for messages: without its query, which may have a key in it, and without a user and password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else url.partition("?")[0]


def read_token(variable: str) -> str | None:
    """The token in an environment variable; None where it is unset or empty."""
    token = os.environ.get(variable, "").strip(" \t\r\n")  # the line end of a file that it was read from
    if _NOT_PRINTABLE_ASCII.search(token):
        raise TokenError(f"{variable} has a space, a control character or a letter that no header may have")
    return token or None
