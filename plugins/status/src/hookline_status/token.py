"""The token that an endpoint may ask for. It is in the environment only: in no config, no spool and no message."""

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["TOKEN_VARIABLE", "TokenError", "authorization"]

TOKEN_VARIABLE: Final = "HOOKLINE_STATUS_TOKEN"

_NOT_IN_A_HEADER = re.compile(r"[^\x21-\x7e]")


class TokenError(ValueError):
    """A token that cannot be sent as a header."""


def authorization() -> dict[str, str]:
    """The header with the token, as a bearer token; no header where the variable is unset or empty."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip(" \t\r\n")  # the line end of a file that it was read from
    if not token:
        return {}
    if _NOT_IN_A_HEADER.search(token):
        raise TokenError(f"{TOKEN_VARIABLE} has a space, a control character or a letter that no header may have")
    return {"authorization": f"Bearer {token}"}
