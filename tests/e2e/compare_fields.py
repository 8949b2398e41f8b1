"""Two answers side by side: every field in which they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple, Protocol

FRESH = frozenset({"id", "created", "created_at", "completed_at", "request_id", "item_id"})
"""New with every answer: only that they are there is compared."""
LOGPROB_MARGIN = 0.01
"""Two engines compute with other batches, so the last digits differ."""
SHOWN_CHARS = 100
"""Of a value, in the table."""
ABSENT = "absent"


class Answered(Protocol):
    """A status and a body that `parsed` has read."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> Any: ...


class Difference(NamedTuple):
    """One field in one case."""

    case: str
    path: str
    ours: str
    theirs: str


def parsed(raw: bytes, kind: str) -> Any:
    """A body; of a stream what `joined` makes of it."""
    if kind != "text/event-stream":
        return json.loads(raw) if raw else None
    data = [line.removeprefix("data:").strip() for line in raw.decode().splitlines() if line.startswith("data:")]
    return joined([json.loads(line) for line in data if line != "[DONE]"]) | {"done": data[-1] == "[DONE]"}


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream without regard to how it was cut: the fields of its events with the kinds of their values, the order of
    its types, and what it says."""
    shape: dict[str, set[str]] = {}
    said: dict[str, str] = {}
    for event in events:
        _shape(event, "", shape)
        for place, text in _said(event):
            said[place] = said.get(place, "") + text
    types = [kind for kind, _ in groupby(event.get("type", "") for event in events)]
    return {"fields": shape, "said": said, "types": types}


def _said(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for choice in event.get("choices", []):
        delta = choice.get("delta") or {"content": choice.get("text")}
        yield f"{choice['index']}", delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            function = call["function"]
            yield f"{choice['index']}.{call['index']}", (function.get("name") or "") + (function.get("arguments") or "")
        if choice.get("finish_reason"):
            yield f"{choice['index']}.finish", choice["finish_reason"]
    delta = event.get("delta")
    if isinstance(delta, str):
        yield "0", delta
    elif isinstance(delta, dict):
        yield "0", delta.get("text") or ""


def _shape(value: Any, path: str, into: dict[str, set[str]]) -> None:
    """Which fields there are, anywhere, by the kinds of their values."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _shape(inner, f"{path}.{name}" if path else name, into)
    elif isinstance(value, list):
        for inner in value:
            _shape(inner, f"{path}[]", into)
    else:
        into.setdefault(path, set()).add(type(value).__name__)


def differences(case: str, ours: Answered, theirs: Answered) -> Iterator[Difference]:
    """Every place where the two differ; if one is an error and the other none, that alone."""
    if (ours.status < 400) != (theirs.status < 400):
        yield Difference(case, "status", *(f"{each.status}: {_cut(each.body)}" for each in (ours, theirs)))
        return
    if ours.status != theirs.status:
        yield Difference(case, "status", str(ours.status), str(theirs.status))
    for path, mine, other in _walk(ours.body, theirs.body, ""):
        yield Difference(case, path, mine, other)


def _walk(ours: Any, theirs: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted(ours.keys() | theirs.keys()):
            inner = f"{path}.{name}" if path else name
            if name not in ours or name not in theirs:
                yield inner, _short(ours, name), _short(theirs, name)
            elif name not in FRESH:
                yield from _walk(ours[name], theirs[name], inner)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for mine, other in zip(ours, theirs, strict=True):
            yield from _walk(mine, other, f"{path}[]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if abs(ours - theirs) > LOGPROB_MARGIN:
            yield path, str(ours), str(theirs)
    elif ours != theirs:
        yield path, _cut(ours), _cut(theirs)


def _short(fields: dict[str, Any], name: str) -> str:
    return _cut(fields[name]) if name in fields else ABSENT


def _cut(value: Any) -> str:
    text = ", ".join(sorted(value)) if isinstance(value, set) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
