"""Removes secrets from what a process writes, sends and prints.

Secrets are known from `remember_secrets`, which is called with all options and configs, and from the environment.
Everything that leaves the process goes through `redact` (data) or `redact_text` (text). Both replace known secrets
wherever they occur, also percent-encoded, escaped or in base64. Secrets are

- values with a secret name (`hookline_hookspecs.secret_names`), and everything below such a name;
- the value of a pydantic `SecretStr` or `SecretBytes`, whatever its name;
- user and password in a URL, and its parameters with a secret name.

In data, a value below a secret name is always replaced, except None, empty text and booleans. In text, only secrets of
at least `MIN_SECRET_LENGTH` characters are replaced, since shorter ones would also match parts of other words.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from hookline_hookspecs.secret_names import is_secret_name

__all__ = ["REDACTED", "forget_secrets", "redact", "redact_arguments", "redact_text", "remember_secrets"]

REDACTED: Final = "********"
MIN_SECRET_LENGTH: Final = 6
MIN_TOKEN_LENGTH: Final = 16
"""The user part of a URL without a password counts as a token if it is at least this long, else as a user name."""
MIN_LINE_LENGTH: Final = 16
"""Each line of a multi-line secret, such as a private key, is also a secret if it is at least this long."""
MAX_DEPTH: Final = 100
"""Data that is nested deeper is replaced as a whole."""

MAX_CACHED_LENGTH: Final = 100
MAX_CACHED_TEXTS: Final = 4096

_USER_IN_URL = re.compile(
    r"""(?<=://)(?:[^/?#\s"'<>]+(?=@)|[^:/?#\s"'<>@]*:(?!\d*(?:[/?#\s"'<>]|$))[^\s"'<>@]*(?=@))"""
)
"""The part before the `@`. The second alternative allows a password with characters that should have been encoded."""
_PARAMETER = re.compile(r"""(?<=[?&;#])([^=&;#?\s"'<>]{1,100})=([^&;#\s"'<>]+)""")
_SCHEME = re.compile(r"(?i)(?:basic|bearer|token|apikey|digest)\s+(\S+)$")
_SIGNATURES: Final = ("sig", "signature")
"""Parameters of signed URLs, which grant access by themselves."""


# -- the secrets of the process -----------------------------------------------------------------------------------


class _Replacements:
    """The strings to replace in text. Rebuilt when a secret is added or the environment changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._remembered: frozenset[str] = frozenset()
        self._environment: Mapping[Any, Any] | None = None
        self._texts: list[str] = []
        self._numbers: re.Pattern[str] | None = None
        self._cache: dict[str, str] = {}
        """A cache of short texts and their redacted forms, since names of metrics come with every message."""

    def add(self, secrets: Iterable[str]) -> None:
        with self._lock:
            self._remembered |= {part for secret in secrets for part in _parts(secret)}
            self._environment = None

    def clear(self) -> None:
        with self._lock:
            self._remembered, self._environment = frozenset(), None

    def update(self) -> None:
        """Rebuild if the environment has changed."""
        # Comparing the dict behind `os.environ` takes a microsecond, comparing `os.environ` itself fifty.
        environment: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
        if environment == self._environment:
            return
        with self._lock:
            environment = dict(environment)
            found = {part for secret in _find(dict(os.environ)) for part in _parts(secret)}
            forms = {form for secret in self._remembered | found for form in _forms(secret)}
            # The longest first, since one may be a prefix of another.
            self._texts = sorted((form for form in forms if not form.isdecimal()), key=len, reverse=True)
            # A numeric secret is replaced only as a whole number, not inside another number.
            numbers = "|".join(sorted(form for form in forms if form.isdecimal()))
            self._numbers = re.compile(rf"(?<![\d.])(?:{numbers})(?![\d.])") if numbers else None
            self._cache = {}
            self._environment = environment

    def apply(self, text: str) -> str:
        """`text` without known secrets and without secrets in URLs."""
        cache = self._cache
        safe = cache.get(text)
        if safe is None:
            safe = self._applied(text)
            if len(text) <= MAX_CACHED_LENGTH and len(cache) < MAX_CACHED_TEXTS:
                cache[text] = safe
        return safe

    def _applied(self, text: str) -> str:
        # Before URLs are parsed, since a secret may contain characters that delimit parts of a URL.
        for secret in self._texts:  # ten times as fast as one regular expression of all secrets
            text = text.replace(secret, REDACTED)
        if self._numbers is not None:
            text = self._numbers.sub(REDACTED, text)
        if "://" in text:
            text = _USER_IN_URL.sub(REDACTED, text)
        return _PARAMETER.sub(_redacted_parameter, text) if "=" in text else text


_replacements = _Replacements()


def remember_secrets(data: Any, name: str = "") -> None:
    """Redact the secrets in `data` from now on.

    :param data: an option, a whole config, an object with options (a dataclass or pydantic model), or a URL.
    :param name: the name of `data`, if it is a single value.
    """
    _replacements.add(_find(data, is_secret_name(name)))


def forget_secrets() -> None:
    """Forget all remembered secrets. For tests, which share a process."""
    _replacements.clear()


def _find(value: Any, is_secret: bool = False, depth: int = 0) -> Iterator[str]:
    """The secrets in `value`. With `is_secret`, everything in it is one."""
    if depth > MAX_DEPTH or value is None or isinstance(value, bool):
        return
    if callable(getattr(value, "get_secret_value", None)):
        value, is_secret = value.get_secret_value(), True
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        yield from _in_urls(value)
    if is_secret and isinstance(value, (str, int)):
        yield str(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _find(inner, is_secret, depth + 1)
    else:
        for key, inner in _fields(value):
            yield from _find(inner, is_secret or is_secret_name(str(key)), depth + 1)


def _fields(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(own.name, getattr(value, own.name, None)) for own in dataclasses.fields(value)]
    return list(vars(value).items()) if hasattr(type(value), "model_fields") else ()


def _in_urls(text: str) -> Iterator[str]:
    if "://" in text:
        for match in _USER_IN_URL.finditer(text):
            user, colon, password = match[0].partition(":")
            if not colon and len(user) < MIN_TOKEN_LENGTH:
                continue  # a user name such as `postgres`, which also occurs in other text
            yield unquote(password if colon else user)
            if colon:
                yield base64.b64encode(_bytes(unquote(match[0]))).decode()
    if "=" in text:
        for match in _PARAMETER.finditer(text):
            if _is_secret_parameter(match[1]):
                yield unquote_plus(match[2])
                yield unquote(match[2])


def _is_secret_parameter(name: str) -> bool:
    name = unquote(name)
    return is_secret_name(name) or name.lower().endswith(_SIGNATURES)


def _parts(secret: str) -> Iterator[str]:
    """The parts of a secret to replace in text: all of it, the token after a scheme, and each long line."""
    secret = secret.strip()  # it may have the line end of a file
    scheme = _SCHEME.match(secret)
    for part in (secret, *(scheme.groups() if scheme else ())):
        if len(part) >= MIN_SECRET_LENGTH and part.strip("*"):  # asterisks were redacted already
            yield part
    if "\n" in secret:
        lines = (line.strip() for line in secret.splitlines())
        yield from (line for line in lines if len(line) >= MIN_LINE_LENGTH and not line.startswith("-----"))


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, and as it appears in a URL, JSON, a `repr`, HTML, a command line and base64."""
    yield secret
    for encode in (quote, quote_plus):
        for safe in ("", "/"):
            encoded = encode(secret, safe=safe, errors="surrogatepass")
            yield encoded
            yield re.sub("%..", lambda code: code[0].lower(), encoded)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield html.escape(secret)
    yield secret.replace("'", "'\"'\"'")
    for encode_64 in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode_64(_bytes(secret)).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# -- redaction ----------------------------------------------------------------------------------------------------


def redact(value: Any, *, by_names: bool = True) -> Any:
    """A copy of `value` without secrets, at any depth: values with secret names, known secrets, secrets in URLs.

    Values that are not mappings, sequences or text are returned as they are, unless their name is secret.

    :param by_names: false for data whose names are not settings, such as metrics, where `reward/key` is a number.
    """
    _replacements.update()
    return _redacted(value, is_secret_name if by_names else _never, False, 0)


def _never(name: str) -> bool:
    del name
    return False


def redact_text(text: str) -> str:
    """`text` without known secrets, and without users, passwords and secret parameters of URLs."""
    _replacements.update()
    return _replacements.apply(text)


def _redacted(value: Any, says_secret: Callable[[str], bool], is_secret: bool, depth: int) -> Any:
    if isinstance(value, str):
        return REDACTED if value and is_secret else _replacements.apply(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (float, int)):
        return REDACTED if is_secret else value
    if depth > MAX_DEPTH or callable(getattr(value, "get_secret_value", None)):
        return REDACTED
    if isinstance(value, (dict, Mapping)):
        return {
            _replacements.apply(key) if isinstance(key, str) else key: _redacted(
                inner, says_secret, is_secret or says_secret(str(key)), depth + 1
            )
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_redacted(inner, says_secret, is_secret, depth + 1) for inner in value]
    return REDACTED if is_secret else value


def _redacted_parameter(match: re.Match[str]) -> str:
    return f"{match[1]}={REDACTED}" if _is_secret_parameter(match[1]) else match[0]


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line without secrets. Redacts `--api-key S` and `-o plugin.api_key=S` even if S is short."""
    shown, is_secret = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if is_secret and not argument.startswith("-"):
            shown.append(REDACTED)
        elif equals and any(map(is_secret_name, name.split("."))):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(redact_text(argument))
        is_secret = not equals and argument.startswith("-") and is_secret_name(argument)
    return shown
