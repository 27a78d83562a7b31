"""Keeps secrets out of whatever is shown, written or sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["REDACTED", "is_secret_name", "redact"]

REDACTED: Final = "********"

_SECRET = re.compile(r"(^|[^a-z])(token|secret|password|passwd|credentials?|authorization|api_?key|access_?key|key)s?$")
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
