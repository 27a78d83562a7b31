"""Decides which names are those of secrets: `api_key` and `PGPASSWORD` are, `max_tokens` and `obs_key` are not.

A name is split into words: `clientSecret`, `client-secret` and `CLIENT_SECRET` are the same. Some words have another
meaning in training, so `token`, `key`, `pass` and the like count only at the end of a name, and not after words such as
`pad`, `obs` or `forward`.
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
"""Secret anywhere in a name, also inside a word: `PGPASSWORD`, `api_key_2`."""
_AT_END = re.compile("auth|oauth|authentication|pwd|dsn|jwt|otp")

_SUFFIXES_OF_NON_SECRETS = re.compile(
    "counts?|size|length|len|limit|rate|ratio|files?|paths?|dir|folder|names?|field|env|var|variable|type|kind|policy"
    "|ttl|seconds|timeout|required|enabled|url|uri|hint|provider|store|backend"
)
"""A name that ends in one of these describes a secret but is not one: `password_file`, `secret_name`."""

_BEFORE_TEXT_TOKEN = re.compile(
    "pad|padding|eos|bos|unk|unknown|mask|masked|cls|sep|separator|next|first|last|prev|previous|per|stop|end|start"
    "|begin|special|image|audio|video|new|each|one|single|prompt|response|prefix|suffix|think|thinking|text|input"
    "|output|target"
)
_BEFORE_DATA_PASS = re.compile("forward|backward|first|second|last|next|single|one|two|multi|per|full|each")
_BEFORE_FILTER_PASS = re.compile("low|high|band")
_BEFORE_SECRET_KEY = re.compile(
    "|account|admin|aes|anthropic|app|auth|aws|azure|client|consumer|crypto|deploy|gcp|github|gitlab|google|gpg|hf|hmac"
    "|license|master|mistral|openai|pgp|rsa|security|server|service|session|shared|ssh|storage|subscription|wandb"
)
"""Words that make a following `key` secret. Other keys, such as `obs_key`, are not. In upper case, every KEY is."""

_SHELL_FOLDERS: Final = ("PWD", "OLDPWD")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether this is the name of a secret setting, environment variable, header or URL parameter."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or name in _SHELL_FOLDERS or _SUFFIXES_OF_NON_SECRETS.fullmatch(words[-1]):
        return False
    before, last = ["", *words][-2:]
    if last == "token":
        return not _BEFORE_TEXT_TOKEN.fullmatch(before)
    if last == "pass":
        return not (_BEFORE_DATA_PASS.fullmatch(before) or _BEFORE_FILTER_PASS.fullmatch(before))
    if last == "key" and (name.isupper() or _BEFORE_SECRET_KEY.fullmatch(before)):
        return True
    return bool(_AT_END.fullmatch(last) or _ANYWHERE.search("_".join(words)))
