"""Reads episodes: records or dictionaries, in a list or a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from hookline.rewards.errors import RewardError
from hookline_hookspecs import Episode

__all__ = ["as_records", "episodes_of"]

FIELDS: Final = frozenset(field.name for field in fields(Episode))


def episodes_of(buffer: Any) -> list[Any]:
    """The episodes of a buffer: its `episodes`, or the items of the buffer itself."""
    episodes = getattr(buffer, "episodes", buffer)
    if isinstance(episodes, (str, bytes, Mapping)) or not isinstance(episodes, Iterable):
        raise RewardError(
            f"{type(buffer).__name__} is not a buffer: a buffer has a list `episodes`, or is a list of episodes"
        )
    return list(episodes)


def as_records(episodes: Sequence[Any]) -> list[Episode]:
    """The episodes as `Episode` records. Keys of a dictionary that are not fields go into the metadata."""
    records = [
        episode if type(episode) is Episode else _as_record(index, episode) for index, episode in enumerate(episodes)
    ]
    for index, record in enumerate(records):
        if type(record.response) is not str or type(record.prompt) is not str:
            _check_texts(index, record.prompt, record.response)
    return records


def _as_record(index: int, episode: Any) -> Episode:
    if isinstance(episode, Episode):
        return episode
    if not isinstance(episode, Mapping):
        raise RewardError(f"episode {index} must be an Episode or a dictionary, got {type(episode).__name__}")
    if "response" not in episode and "turns" not in episode:
        raise RewardError(f"episode {index} has no 'response'; it has {', '.join(map(repr, episode)) or 'nothing'}")
    prompt, response = episode.get("prompt", ""), episode.get("response", "")
    if type(prompt) is not str or type(response) is not str:
        _check_texts(index, prompt, response)
    metadata = episode.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise RewardError(f"episode {index}: metadata must be a dictionary, got {type(metadata).__name__}")
    known = {key: value for key, value in episode.items() if key in FIELDS}
    known["metadata"] = {key: value for key, value in episode.items() if key not in FIELDS} | dict(metadata or {})
    return Episode(**known)


def _check_texts(index: int, prompt: Any, response: Any) -> None:
    for name, text in {"prompt": prompt, "response": response}.items():
        if not isinstance(text, str):
            raise RewardError(f"episode {index}: {name} must be a string, got {type(text).__name__}")
