"""Text of others on a terminal: no control character passes, and nothing else changes."""

from __future__ import annotations

import json

import pytest

from api.process.printable import printable, printable_json, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("decode-0", "decode-0"),
        ("Zürich 東京 🙂 \u200f", "Zürich 東京 🙂 \u200f"),
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("\x00\x7f\x80\x9f\xa0", "\\x00\\x7f\\x80\\x9f\xa0"),
        ("\u2029\u202a\u202e\u202f\u2065\u2066\u2069\u206a", "\u2029\\u202a\\u202e\u202f\u2065\\u2066\\u2069\u206a"),
        ("a\tb\nc\r", "a\\tb\\nc\\r"),
    ],
)
def test_control_characters_become_escapes(text: str, shown: str) -> None:
    """At both ends of each range; a text of lines keeps its lines."""
    assert printable(text) == shown
    assert printable_lines(text).replace("\t", "\\t").replace("\n", "\\n") == shown


def test_json_keeps_its_value() -> None:
    """JSON escapes C0 itself, and lets the others stand."""
    value = {"name\x9b": "a\x7f\x80\u202e\u2069\n\x1b b"}
    text = json.dumps(value, ensure_ascii=False)
    shown = printable_json(text)
    assert json.loads(shown) == value
    assert not {"\x7f", "\x80", "\x9b", "\u202e", "\u2069"} & set(shown)
    assert printable_json('{"a": 1}\n') == '{"a": 1}\n'
