"""Bodies of some 15 MiB that were made to hold up a front end, by name: each with its path.

Every one of them is within the bounds on bytes, values, objects and lists, but for what `json_limits` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

SIZE = 15 * 1024 * 1024
CHAT, COMPLETION, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
COUNT, EMBEDDINGS, TOKENIZE = "/v1/messages/count_tokens", "/v1/embeddings", "/tokenize"
ASKED = b'"messages":[{"role":"user","content":"hi"}]'


def listed(unit: bytes, most: int = SIZE) -> bytes:
    """A list of many of these values."""
    return b"[" + b",".join([unit] * min(SIZE // (len(unit) + 1), most)) + b"]"


def keyed(count: int) -> bytes:
    """An object with so many different keys."""
    return b"{" + b",".join([b'"%x":1' % key for key in range(count)]) + b"}"


def chat(fields: bytes) -> bytes:
    """A body of few tokens with these fields."""
    return b'{"model":"tiny","max_tokens":4,' + fields + b"}"


VALUES: dict[str, Callable[[], bytes]] = {
    "keys": lambda: keyed(990_000),
    "floats": lambda: b'{"a":' + listed(b"1.7976931348623157081e-300") + b"}",
    "long floats": lambda: b'{"a":' + listed(b"1." + b"7" * 800 + b"e-300") + b"}",
    "integers": lambda: b'{"a":' + listed(b"9" * 4299) + b"}",
    "lists": lambda: b'{"a":' + listed(b"[]", 98_000) + b"}",
}
"""Costly values of fields that may hold any object."""
FREE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "metadata": (CHAT, lambda value: chat(ASKED + b',"metadata":' + value)),
    "documents": (CHAT, lambda value: chat(ASKED + b',"documents":[' + value + b"]")),
    "a refused field": (CHAT, lambda value: chat(ASKED + b',"audio":' + value)),
    "a refused field beside tokens": (COMPLETION, lambda value: chat(b'"prompt":[20],"suffix":' + value)),
    "a schema beside tokens": (
        COMPLETION,
        lambda value: chat(b'"prompt":[20],"structured_outputs":{"json":%b}' % value),
    ),
    "biases": (COMPLETION, lambda value: chat(b'"prompt":[20],"logit_bias":' + value)),
    "arguments": (
        CHAT,
        lambda value: chat(
            b'"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"a","arguments":%b}}]}]' % value
        ),
    ),
    "tools": (CHAT, lambda value: chat(ASKED + b',"tools":[{"function":{"name":"a","parameters":%b}}]' % value)),
    "input of a call": (
        MESSAGES,
        lambda value: chat(
            b'"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"a","input":%b}]}]' % value
        ),
    ),
    "source of a document": (
        COUNT,
        lambda value: chat(b'"messages":[{"role":"user","content":[{"type":"document","source":%b}]}]' % value),
    ),
    "output of a hosted tool": (
        RESPONSES,
        lambda value: b'{"model":"tiny","input":[{"type":"web_search_call_output","output":%b}]}' % value,
    ),
    "additional tools": (
        RESPONSES,
        lambda value: b'{"model":"tiny","input":[{"type":"additional_tools","tools":[%b]}]}' % value,
    ),
    "a stored prompt": (RESPONSES, lambda value: b'{"model":"tiny","input":"a","prompt":%b}' % value),
    "variables": (TOKENIZE, lambda value: b'{"model":"tiny",%b,"chat_template_kwargs":%b}' % (ASKED, value)),
    "an unknown field": (EMBEDDINGS, lambda value: b'{"model":"tiny","input":"a","unknown":%b}' % value),
}
"""Fields that any value may stand in, or stood in: path, and the body with the value."""


def _responses(items: bytes) -> bytes:
    return b'{"model":"tiny","max_output_tokens":4,"input":%b}' % items


OTHERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "turns of one assistant": (
        RESPONSES,
        lambda: _responses(listed(b'{"role":"assistant","content":"%b"}' % (b"a" * 100), 98_000)),
    ),
    "calls of one turn": (
        RESPONSES,
        lambda: _responses(
            listed(b'{"type":"custom_tool_call","call_id":"a","name":"a","namespace":"b","input":"x"}', 98_000)
        ),
    ),
    "fewer calls of one turn": (
        RESPONSES,
        lambda: _responses(
            listed(b'{"type":"custom_tool_call","call_id":"a","name":"a","namespace":"b","input":"x"}', 30_000)
        ),
    ),
    "numbers as a prompt": (COMPLETION, lambda: chat(b'"prompt":' + listed(b"9" * 4299))),
    "numbers to embed": (EMBEDDINGS, lambda: b'{"model":"tiny","input":%b}' % listed(b"9" * 4299)),
    "one number": (CHAT, lambda: chat(ASKED + b',"n":' + b"9" * SIZE)),
    "an exponent": (CHAT, lambda: chat(ASKED + b',"temperature":1e999999')),
    "arguments as text": (
        CHAT,
        lambda: chat(
            b'"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"a","arguments":"%b"}}]}]'
            % keyed(900_000).replace(b'"', b'\\"')
        ),
    ),
    "a type": (
        CHAT,
        lambda: chat(b'"messages":[{"role":"user","content":[{"type":"%b"}]}]' % (b"\xc2\x80" * (SIZE // 2))),
    ),
    "a model": (CHAT, lambda: b'{"model":"%b",%b}' % (b"\xc2\x80" * (SIZE // 2), ASKED)),
    "escapes": (CHAT, lambda: chat(ASKED + b',"user":"%b"' % (b"\\u00e9" * (SIZE // 6)))),
    "deep lists": (CHAT, lambda: b"[" * 99_000),
    "a bad last byte": (CHAT, lambda: chat(b'"messages":[{"role":"user","content":"%b"}]' % (b"a" * SIZE))[:-1] + b"]"),
    "bad UTF-8 at the end": (CHAT, lambda: chat(b'"messages":[{"role":"user","content":"%b\xff"}]' % (b"a" * SIZE))),
    "one key again and again": (CHAT, lambda: chat(b",".join([ASKED] * 49_000))),
    "messages": (CHAT, lambda: chat(b'"messages":' + listed(b'{"role":"user","content":"a"}', 60_000))),
    "parts": (
        MESSAGES,
        lambda: chat(b'"messages":[{"role":"user","content":%b}]' % listed(b'{"type":"text","text":"a"}', 60_000)),
    ),
    "text": (CHAT, lambda: chat(b'"messages":[{"role":"user","content":"%b"}]' % (b"ab " * (SIZE // 3)))),
}
"""Path and body."""


@cache
def _value(kind: str) -> bytes:
    return VALUES[kind]()


def hostile_bodies() -> Iterator[tuple[str, str, bytes]]:
    """Name, path and body of each."""
    for field, (path, body_with) in FREE.items():
        for kind in VALUES if field == "metadata" else ("keys", "floats"):
            yield f"{kind} in {field}", path, body_with(_value(kind))
    for name, (path, body) in OTHERS.items():
        yield name, path, body()
