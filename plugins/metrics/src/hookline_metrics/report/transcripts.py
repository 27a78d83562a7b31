"""The newest episodes of a run as HTML: each conversation with its reward and verdicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs.redaction import redact
from hookline_metrics.episodes import read_episodes
from hookline_metrics.report.scales import format_number

__all__ = ["transcripts"]

GIST: Final = 80
"""Characters of a prompt and a response in the line that stands for an episode."""


def transcripts(folder: Path) -> Iterator[str]:
    """A block to open for each episode, the newest first."""
    for record in redact(read_episodes(folder), by_names=False):
        # The page is updated while an episode is open, so each has an id that stays.
        digest = hashlib.blake2s(json.dumps(record).encode(), digest_size=8).hexdigest()
        yield (
            f'<details class="wide episode" id="episode-{digest}"><summary>{_summary(record)}</summary>'
            f"{''.join(_turns(record))}{_ending(record)}{_reference(record)}{_verdicts(record)}</details>"
        )


def _summary(record: Mapping[str, Any]) -> str:
    facts = [f"step {_shown(record.get('step'))}"]
    if record.get("lesson") is not None:
        facts.append(_text(record["lesson"]))
    facts.append(f"reward {_shown(record.get('reward'))}")
    accepted = record.get("accepted")
    if accepted is not None:
        state = "accepted" if accepted else f"rejected: {_text(record.get('reason'))}"
        facts.append(f'<span class="{"good" if accepted else "bad"}">{state}</span>')
    texts = [_gist(turn.get("text")) for turn in _dictionaries(record["turns"])]
    gist = " → ".join([texts[0], texts[-1]] if len(texts) > 1 else texts)
    return f'{" · ".join(facts)} <span class="gist">{gist}</span>'


def _turns(record: Mapping[str, Any]) -> Iterator[str]:
    for turn in _dictionaries(record["turns"]):
        role = _text(turn.get("role"))
        style = "turn own" if role == "assistant" else "turn"
        yield f'<div class="{style}"><h3>{role}</h3><pre>{_text(turn.get("text"))}</pre></div>'


def _ending(record: Mapping[str, Any]) -> str:
    ending = _text(record.get("ending"))
    return f'<p class="{"bad" if ending.startswith("failed") else ""}">{ending}</p>' if ending else ""


def _reference(record: Mapping[str, Any]) -> str:
    expected = record.get("reference")
    return "" if expected is None else f'<div class="turn"><h3>expected</h3><pre>{_text(expected)}</pre></div>'


def _verdicts(record: Mapping[str, Any]) -> str:
    verdicts = record.get("verdicts")
    rows = []
    for verifier, verdict in verdicts.items() if isinstance(verdicts, dict) else ():
        if isinstance(verdict, dict):
            result = _text(verdict.get("result"))
            style = {"pass": "good", "fail": "bad"}.get(result, "")
            rows.append(
                f'<tr><td>{_text(verifier)}</td><td class="{style}">{result}</td>'
                f"<td>{_text(verdict.get('message'))}</td><td>{_shown(verdict.get('score'))}</td></tr>"
            )
    return f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""


def _dictionaries(values: list[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _gist(text: Any) -> str:
    line = " ".join(str(text).split())
    return escape(line if len(line) <= GIST else f"{line[: GIST - 1]}…")


def _text(value: Any) -> str:
    return "" if value is None else escape(str(value))


def _shown(value: Any) -> str:
    return format_number(value) if isinstance(value, (int, float)) else "none"
