"""Text of others made printable: a name from a log or a file must not command the terminal that shows it."""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
"""C0 but for tab and newline, DEL, C1, and the characters that turn the direction of text around."""
_in_text = re.compile(f"[{_CONTROLS}]")
_in_line = re.compile(f"[{_CONTROLS}\t\n]")
_in_json = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text as one line: its control characters, newlines and tabs stand as escapes."""
    return _in_line.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same of a text that has lines of its own."""
    return _in_text.sub(_escaped, text)


def printable_json(text: str) -> str:
    """JSON of the same value with the control characters escaped that JSON lets stand."""
    return _in_json.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
