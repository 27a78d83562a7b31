"""Which names say that a value is secret: `api_key` and `PGPASSWORD` do, `max_tokens` and `obs_key` do not.

A name is read as words: `clientSecret`, `client-secret` and `CLIENT_SECRET` are the same two. Training has its own use
for some words, so `token`, `key`, `pass` and the like count only at the end of a name, and not after a word that gives
them another meaning.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["is_secret_name"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_ANYWHERE = re.compile(
    "password|passwd|passphrase|passcode|secret|credential|authorization|cookie|bearer|connection_string"
    "|(api|access|private|signing|encryption)_?keys?(_|$)"
    "|(auth|access|api|refresh|session)_?tokens?(_|$)"
)
"""Secret wherever it stands, also as a part of a word: `PGPASSWORD`, `api_key_2`."""
_AT_THE_END = re.compile("auth|oauth|authentication|pwd|dsn|jwt|otp")

_ABOUT_A_SECRET = re.compile(
    "counts?|size|length|len|limit|rate|ratio|files?|paths?|dir|folder|names?|field|env|var|variable|type|kind|policy"
    "|ttl|seconds|timeout|required|enabled|url|uri|hint|provider|store|backend"
)
"""At the end of a name it says something of a secret that is none: `password_file`, `secret_name`."""

_BEFORE_A_TOKEN_OF_TEXT = re.compile(
    "pad|padding|eos|bos|unk|unknown|mask|masked|cls|sep|separator|next|first|last|prev|previous|per|stop|end|start"
    "|begin|special|image|audio|video|new|each|one|single|prompt|response|prefix|suffix|think|thinking|text|input"
    "|output|target"
)
_BEFORE_A_PASS_OVER_DATA = re.compile("forward|backward|first|second|last|next|single|one|two|multi|per|full|each")
_BEFORE_A_PASS_OF_A_FILTER = re.compile("low|high|band")
_BEFORE_A_SECRET_KEY = re.compile(
    "|account|admin|aes|anthropic|app|auth|aws|azure|client|consumer|crypto|deploy|gcp|github|gitlab|google|gpg|hf|hmac"
    "|license|master|mistral|openai|pgp|rsa|security|server|service|session|shared|ssh|storage|subscription|wandb"
)
"""Other keys, such as `obs_key`, are names of things. A variable of the environment that ends in KEY is a secret."""

_FOLDERS_OF_THE_SHELL: Final = ("PWD", "OLDPWD")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a setting, variable, header or parameter of this name holds something that must not be shown."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or name in _FOLDERS_OF_THE_SHELL or _ABOUT_A_SECRET.fullmatch(words[-1]):
        return False
    before, last = ["", *words][-2:]
    if last == "token":
        return not _BEFORE_A_TOKEN_OF_TEXT.fullmatch(before)
    if last == "pass":
        return not (_BEFORE_A_PASS_OVER_DATA.fullmatch(before) or _BEFORE_A_PASS_OF_A_FILTER.fullmatch(before))
    if last == "key" and (name.isupper() or _BEFORE_A_SECRET_KEY.fullmatch(before)):
        return True
    return bool(_AT_THE_END.fullmatch(last) or _ANYWHERE.search("_".join(words)))
