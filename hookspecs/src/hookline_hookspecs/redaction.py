"""Keeps secrets out of whatever is shown, written or sent.

Whoever has a sink (a file, a database, another system) passes what goes there through `redact`, and texts that others
wrote, such as the message of an error, through `redact_text`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["REDACTED", "is_secret_name", "redact", "redact_text"]

REDACTED: Final = "********"

_SECRET = re.compile(r"(^|[^a-z])(token|secret|password|passwd|credentials?|authorization|api_?key|access_?key|key)s?$")
SHORTEST_SECRET: Final = 6
"""Shorter values of the environment are not looked for in texts: a `1` would be found everywhere."""

_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds something that must not be shown, such as `api_key` or `auth-token`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _SECRET.search(words) is not None


def redact(value: Any, name: str = "") -> Any:
    """`value` with what must not be shown replaced, at any depth: by the names of settings, and in addresses."""
    if isinstance(value, Mapping):
        return {key: redact(inner, str(key)) for key, inner in value.items()}
    if value is not None and value != "" and is_secret_name(name):
        return REDACTED
    if isinstance(value, (list, tuple)):
        return [redact(inner) for inner in value]
    return _CREDENTIALS_IN_URL.sub(REDACTED, value) if isinstance(value, str) else value


def redact_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` without the values of environment variables whose names say that they are secret, and credentials in URLs.

    :param environ: where to look for secrets (default: this process's environment).
    """
    environ = os.environ if environ is None else environ
    # Without the line end of a file that one was read from: whoever uses it has taken that off.
    named = [value.strip() for name, value in environ.items() if is_secret_name(name)]
    secrets = [value for value in named if len(value) >= SHORTEST_SECRET]
    # The longest first: one may be the beginning of another.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _CREDENTIALS_IN_URL.sub(REDACTED, text)
