"""The HTML page of a replay: one self-contained file, without scripts, in which all text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from hookline_evaluation.replays.drawing import trajectory_plot

__all__ = ["replay_page"]

# Responses are untrusted text. Should one get past the escaping, this policy keeps it from running or loading anything.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

STYLE: Final = """
:root { color-scheme: light dark; --soft: #8884; --bad: #d33; --good: #283; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1.5rem; max-width: 60rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 0; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
section { border: 1px solid var(--soft); border-radius: 6px; padding: 1rem; margin: 1rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .5rem; margin: .2rem 0; }
mark { background: #d334; color: inherit; text-decoration: underline wavy var(--bad); }
.label { color: #888; font-size: .85rem; margin: .6rem 0 0; }
.tokens span { border-radius: 3px; padding: 0 1px; white-space: pre-wrap; }
.bad { color: var(--bad); } .good { color: var(--good); }
.frames { display: flex; flex-wrap: wrap; gap: 4px; } .frames img { max-width: 150px; image-rendering: pixelated; }
svg { max-width: 100%; height: auto; }
"""


def replay_page(records: Sequence[Mapping[str, Any]], *, title: str, scores: Mapping[str, float]) -> str:
    """The page: scores, a list of the episodes, and each episode."""
    return "".join(
        [
            "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>",
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>Replay of {escape(title)}</h1>",
            _scores(scores),
            _list(records),
            *(_episode(number, record) for number, record in enumerate(records, 1)),
            "</body></html>\n",
        ]
    )


def _scores(scores: Mapping[str, float]) -> str:
    rows = (
        f"<tr><td>{escape(name)}</td><td class='number'>{value:.4g}</td></tr>" for name, value in sorted(scores.items())
    )
    return f"<details><summary>Scores</summary><table>{''.join(rows)}</table></details>"


def _list(records: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for number, record in enumerate(records, 1):
        if "response" in record:
            summary = f"{_shortened(str(record['prompt']))} → {_shortened(str(record['response']))}"
        elif "length" in record:
            summary = f"{record['length']} steps"
        else:
            summary = str(record.get("ending", ""))
        rows.append(
            f"<tr><td><a href='#e{number}'>{number}</a></td><td>{escape(str(record['lesson']))}</td>"
            f"<td class='number'>{_number(record.get('reward'))}</td><td>{_badge(record)}</td>"
            f"<td>{escape(summary)}</td></tr>"
        )
    return f"<table><tr><th></th><th>lesson</th><th>reward</th><th></th><th>episode</th></tr>{''.join(rows)}</table>"


def _episode(number: int, record: Mapping[str, Any]) -> str:
    parts = [
        f"<section id='e{number}'><h2>{number}. {escape(str(record['lesson']))}, "
        f"reward {_number(record.get('reward'))} {_badge(record)}</h2>"
    ]
    if "response" in record:
        parts += _text_parts(record)
    if "ending" in record:
        parts.append(f"<p class='label'>{escape(str(record['ending']))}</p>")
    if "observations" in record:
        parts += _control_parts(record)
    if "frames" in record:
        images = "".join(f"<img src='{escape(str(frame))}' alt=''>" for frame in record["frames"])
        parts.append(f"<p class='label'>frames</p><div class='frames'>{images}</div>")
    return "".join([*parts, "</section>"])


def _text_parts(record: Mapping[str, Any]) -> Iterable[str]:
    verdict = record.get("verdict", {})
    two = [{"role": "prompt", "text": record["prompt"]}, {"role": "response", "text": record["response"]}]
    for turn in record.get("turns", two):
        phrases = _rejected_phrases(verdict) if turn["role"] in ("response", "assistant") else []
        yield f"<p class='label'>{escape(str(turn['role']))}</p><pre>{_marked(str(turn['text']), phrases)}</pre>"
    if record.get("reference") is not None:
        yield f"<p class='label'>expected</p><pre>{escape(str(record['reference']))}</pre>"
    if record.get("tokens"):
        tokens = "".join(map(_token, record["tokens"]))
        yield "<p class='label'>log-probability of each token: the darker, the less likely</p>"
        yield f"<pre class='tokens'>{tokens}</pre>"
    if verdict.get("message"):
        yield f"<p class='label'>verdict</p><p>{escape(str(verdict['message']))}</p>"


def _control_parts(record: Mapping[str, Any]) -> Iterable[str]:
    ending = f"{'cut short' if record.get('truncated') else 'ended'} after {record.get('length')} steps"
    yield f"<p class='label'>{escape(str(record.get('environment')))}, {escape(ending)}</p>"
    yield trajectory_plot(record["observations"], record.get("actions", []), record.get("rewards", []))


def _token(token: Mapping[str, Any]) -> str:
    logprob = token.get("logprob")
    surprise = 0.0 if logprob is None else min(1.0, -logprob / 5)
    text = str(token.get("text", "")).replace("\n", "\\n") or "∎"
    return (
        f"<span style='background:rgba(220,120,0,{max(0.0, surprise):.2f})' title='{_number(logprob)}'>"
        f"{escape(text)}</span>"
    )


def _rejected_phrases(verdict: Mapping[str, Any]) -> list[str]:
    """Phrases of the response that verifiers quote in their reasons not to pass it."""
    phrases: set[str] = set()
    details = verdict.get("details")
    for report in details.values() if isinstance(details, Mapping) else ():
        if isinstance(report, Mapping) and report.get("result") not in ("pass", None):
            found = report.get("details")
            for value in found.values() if isinstance(found, Mapping) else ():
                if isinstance(value, list):
                    phrases.update(phrase for phrase in value if isinstance(phrase, str) and phrase.strip())
    return sorted(phrases, key=len, reverse=True)


def _marked(text: str, phrases: Sequence[str]) -> str:
    if not phrases:
        return escape(text)
    # The group in the pattern makes every second piece a phrase.
    pieces = re.split(rf"(?<!\w)({'|'.join(map(re.escape, phrases))})(?!\w)", text, flags=re.IGNORECASE)
    return "".join(f"<mark>{escape(own)}</mark>" if index % 2 else escape(own) for index, own in enumerate(pieces))


def _badge(record: Mapping[str, Any]) -> str:
    verdict = record.get("verdict", {})
    result = verdict.get("result")
    if verdict.get("accepted") is False:
        return f"<span class='bad'>rejected: {escape(str(verdict.get('reason') or ''))}</span>"
    if result is None:
        return "<span class='good'>accepted</span>" if verdict.get("accepted") else ""
    # Labelled as verification, since a response that passes it can still have a wrong answer and a low reward.
    return f"<span class='{'good' if result == 'pass' else 'bad'}'>verification: {escape(str(result))}</span>"


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:.4g}"


def _shortened(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
