"""A program's request without its texts: what the suite keeps of it.

Structure, names of fields and tools, and the shapes of JSON schemas stay. Every text is replaced by words of ours,
equal texts by equal ones; every id by a number in the same form. Arguments of calls are of our scripts, and stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

TEXT_MAX = 160
"""A longer text is replaced by one of so many characters."""
BILLING = "x-anthropic-billing-header:"
WORDS = ("jet", "leaves", "contrail", "log", "request", "worker", "cache", "prompt", "turn", "block", "replica")
KEPT = frozenset({"type", "role", "name", "model", "status", "tool_name", "namespace", "tool_choice", "arguments"})
"""Fields whose text is a name, or ours."""
SCHEMAS = frozenset({"parameters", "input_schema"})
SAID = frozenset({"description", "title", "examples", "$comment", "default"})
"""What a schema says to its reader."""
HEADERS_LEFT_OUT = frozenset({"host", "connection", "content-length", "accept-encoding"})
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,64}")
PREFIXED = re.compile(r"\b(ses|msg|call|toolu|fc|fco|rs)_[A-Za-z0-9-]+")
SHORT_MAX = 40
"""A text of one word that is no longer is a value of a program's protocol, not prose."""


class Reduction:
    """Of the requests of one program, so that equal ids stay equal."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def request(self, method: str, path: str, headers: dict[str, str], body: Any) -> dict[str, Any]:
        """The request as a file of the suite holds it."""
        kept = {name: value for name, value in headers.items() if name not in HEADERS_LEFT_OUT}
        return {
            "method": method,
            "path": path,
            "headers": {name: self._header(value) for name, value in sorted(kept.items())},
            "body": self._value(body),
        }

    def _header(self, value: str) -> str:
        return self._json(value) if value.startswith("{") else self._numbered(value)

    def _value(self, value: Any, key: str = "") -> Any:
        match value:
            case dict():
                if key in SCHEMAS:
                    return _schema(value)
                return {self._key(name): self._value(inner, name) for name, inner in value.items()}
            case list():
                return [self._value(inner, key) for inner in value]
            case str():
                return self._text(value, key)
        return value

    def _key(self, name: str) -> str:
        return "/repository" if name.startswith("/") else name

    def _text(self, text: str, key: str) -> str:
        if text.startswith(BILLING):
            return f"{BILLING} cc_version=2.1.331.{_digest(text)[:3]}; cc_entrypoint=sdk-cli;"
        if key in KEPT:
            return text
        if text.startswith("{") and key != "text":
            return self._json(text)
        if len(text) <= SHORT_MAX and not re.search(r"\s", text) and "/" not in text:
            return self._numbered(text)
        if ID.fullmatch(text) or PREFIXED.fullmatch(text):
            return self._numbered(text)
        return prose(text)

    def _json(self, text: str) -> str:
        """JSON within a text: reduced within it."""
        try:
            return json.dumps(self._value(json.loads(text)))
        except ValueError:
            return prose(text)

    def _numbered(self, text: str) -> str:
        return PREFIXED.sub(self._prefixed, ID.sub(self._plain, text))

    def _plain(self, found: re.Match[str]) -> str:
        known = found[0]
        return self._ids.setdefault(known, f"00000000-0000-4000-8000-{len(self._ids) + 1:012x}")

    def _prefixed(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found[0], f"{found[1]}_{len(self._ids) + 1:024x}")


def prose(text: str) -> str:
    """Words of ours, as long as the text, but no longer than TEXT_MAX; equal for equal texts."""
    length, digest = min(len(text), TEXT_MAX), _digest(text)
    words = [WORDS[int(digest[at : at + 2], 16) % len(WORDS)] for at in range(0, 64, 2)]
    return f"{digest[:8]} {' '.join(words)}"[:length]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _schema(value: Any) -> Any:
    """The schema without what it says to its reader; a property may be called like that."""
    if isinstance(value, list):
        return [_schema(inner) for inner in value]
    if not isinstance(value, dict):
        return prose(value) if isinstance(value, str) and " " in value else value
    properties = value.get("properties")
    kept = {name: _schema(inner) for name, inner in value.items() if name not in SAID and name != "properties"}
    if isinstance(properties, dict):
        kept["properties"] = {name: _schema(inner) for name, inner in properties.items()}
    return kept
