"""Calls of tools as JSON, read as the text comes: one object, or a list of them with or without its brackets.

An object is `{"name": …, "arguments": {…}}`, a list `[{"name": …, "arguments": {…}}, …]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import msgspec

from api.parsers.tool_calls import ToolCallCollector

_NEXT = re.compile(r'["{}\[\]<]')
"""Signs that matter outside of strings. No JSON has `<` there: it begins the mark after a broken object."""
_NEXT_IN_STRING = re.compile(r'["\\]')


class JsonEndScanner:
    """Looks at brackets and strings alone: what else is wrong in the object is its reader's business."""

    __slots__ = ("_depth", "_escaped", "_in_string", "cut")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.cut = False
        """True if the object ended at a sign that no JSON has there."""

    def find(self, text: str) -> int | None:
        """The number of characters up to the object's end; None if the object goes on behind the text."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_NEXT_IN_STRING if self._in_string else _NEXT).search(text, at)
            if found is None:
                return None
            at = found.end()
            if self._ends(found.group()):
                return at - self.cut
        return None

    def _ends(self, sign: str) -> bool:
        if sign == '"':
            self._in_string = not self._in_string
        elif sign == "\\":
            self._escaped = True
        elif sign == "<":
            self.cut = True
        else:
            self._depth += 1 if sign in "{[" else -1
        return self.cut or (self._depth == 0 and not self._in_string)


_QUOTED = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]<]")
_BETWEEN = " \t\r\n"


class JsonCall:
    """One object that may be a call, reported to `ToolCallCollector` once name and arguments have begun.

    Until then it may turn out to be text.

    The two may come in either order, and with other keys. Once confirmed, it stays a call, even with a broken end.
    """

    def __init__(
        self,
        collector: ToolCallCollector,
        keys: Collection[str],
        *,
        names: Collection[str] | None = None,
        others: Collection[str] | None = None,
        bare: bool = False,
    ) -> None:
        """`keys`: how the arguments are called; `names`: the tools there are, `others`: what else may stand in it,
        None for any; `bare`: arguments may be missing."""
        self._collector = collector
        self._keys = keys
        self._names = names
        self._others = others
        self._bare = bare
        self._state: Callable[[str], str] = self._begin
        self._key = ""
        self._raw = ""
        self._escaped = False
        self._whole: Callable[[str], None] = self._key_whole
        self._end = JsonEndScanner()
        self._name: str | None = None
        self._arguments: str | None = None
        self.confirmed = False
        """True once it is a call for certain."""
        self.held = ""
        """All of the object so far, while it may still be text."""
        self.verdict: bool | None = None
        """True if it was a call, False if it was none; None while the object goes on."""

    def __repr__(self) -> str:
        return f"<JsonCall {'confirmed' if self.confirmed else 'held'}, verdict {self.verdict}>"

    def push(self, text: str) -> str:
        """Reads on; what is left of the text is not the object's, and then there is a verdict."""
        rest = text
        while rest and self.verdict is None:
            rest = self._state(rest)
        if not self.confirmed:
            self.held += text[: len(text) - len(rest)]
        return rest

    def _give_up(self, text: str) -> str:
        self.verdict = self.confirmed
        return text

    def _begin(self, text: str) -> str:
        if not (text := text.lstrip(_BETWEEN)):
            return ""
        if text[0] != "{":
            return self._give_up(text)
        self._state = self._next_key
        return text[1:]

    def _next_key(self, text: str) -> str:
        if not (text := text.lstrip(_BETWEEN + ",")):
            return ""
        if text[0] == '"':
            return self._quoted(text, self._key_whole)
        if text[0] == "}":
            return self._close(text[1:])
        return self._give_up(text)

    def _close(self, text: str) -> str:
        if not self.confirmed and self._bare and self._name is not None and self._arguments is None:
            self._add_arguments("{}")
        self.verdict = self.confirmed
        return text

    def _quoted(self, text: str, whole: Callable[[str], None]) -> str:
        self._raw, self._escaped, self._whole, self._state = "", False, whole, self._string
        return text[1:]

    def _string(self, text: str) -> str:
        at = 1 if self._escaped else 0
        self._escaped = False
        found = _QUOTED.search(text, at)
        while found is not None and found.group() == "\\":
            if found.end() == len(text):
                self._escaped = True
                found = None
            else:
                found = _QUOTED.search(text, found.end() + 1)
        if found is None:
            self._raw += text
            return ""
        self._raw += text[: found.start()]
        self._whole(self._raw)
        return text[found.end() :]

    def _key_whole(self, raw: str) -> None:
        self._key = raw
        self._state = self._colon
        known = raw == "name" or raw in self._keys or self._others is None or raw in self._others
        if not known and not self.confirmed:
            self.verdict = False

    def _colon(self, text: str) -> str:
        if not (text := text.lstrip(_BETWEEN)):
            return ""
        if text[0] != ":":
            return self._give_up(text)
        self._state = self._value
        return text[1:]

    def _value(self, text: str) -> str:
        if not (text := text.lstrip(_BETWEEN)):
            return ""
        if text[0] == '"':
            return self._quoted(text, self._string_whole)
        if text[0] in "{[":
            self._end = JsonEndScanner()
            mine = self._key in self._keys and self._arguments is None
            self._state = self._object if mine and text[0] == "{" else self._other
            return self._give_up(text) if mine and text[0] == "[" and not self.confirmed else text
        self._raw, self._state = "", self._scalar
        return text

    def _string_whole(self, raw: str) -> None:
        self._state = self._next_key
        if self.confirmed:
            return
        if self._key == "name":
            self._named(raw)
        elif self._key in self._keys:
            self.verdict = False

    def _named(self, raw: str) -> None:
        try:
            # refuses half a surrogate pair, which no answer can hold
            name = msgspec.json.decode(f'"{raw}"', type=str)
        except msgspec.DecodeError:
            name = ""
        if not name or (self._names is not None and name not in self._names):
            self.verdict = False
            return
        self._name = name
        if self._arguments is not None:
            self._add_arguments("")

    def _object(self, text: str) -> str:
        end = self._end.find(text)
        self._add_arguments(text[:end])
        return self._behind(text, end)

    def _other(self, text: str) -> str:
        return self._behind(text, self._end.find(text))

    def _behind(self, text: str, end: int | None) -> str:
        if end is None:
            return ""
        if self._end.cut:
            return self._give_up(text[end:])
        self._state = self._next_key
        return text[end:]

    def _scalar(self, text: str) -> str:
        found = _SCALAR_END.search(text)
        self._raw += text[: found.start()] if found else text
        if found is None:
            return ""
        rest = text[found.start() :]
        self._state = self._next_key
        if self.confirmed or self._key not in {"name", *self._keys}:
            return rest
        if self._key == "name" or self._raw != "null" or not self._bare:
            return self._give_up(rest)
        self._add_arguments("{}")
        return rest

    def _add_arguments(self, arguments: str) -> None:
        if self.confirmed:
            self._collector.add_arguments(arguments)
            return
        self._arguments = (self._arguments or "") + arguments
        if self._name is not None:
            self.confirmed, self.held = True, ""
            self._collector.begin_call(self._name)
            self._collector.add_arguments(self._arguments)


class JsonCallList:
    """Reads call after call. What is no call ends it: the rest is left to its reader."""

    def __init__(self, new_object: Callable[[], JsonCall]) -> None:
        self._new_object = new_object
        self._object = new_object()
        self._state: Callable[[str], str] = self._begin
        self._listed = False
        self.held = ""
        """Text of the list that may still belong to no call."""
        self.ended = False
        self.count = 0
        """Calls read to their end."""

    def __repr__(self) -> str:
        return f"<JsonCallList {'ended' if self.ended else 'open'}, {self._object}>"

    def push(self, text: str) -> str:
        """Reads on; what is left of the text is not the list's. What is held stands before that."""
        while text and not self.ended:
            text = self._state(text)
        return text

    def _begin(self, text: str) -> str:
        rest = text.lstrip(_BETWEEN)
        self.held += text[: len(text) - len(rest)]
        if not rest:
            return ""
        self._state = self._call
        if rest[0] != "[":
            return rest
        self._listed = True
        self.held += "["
        return rest[1:]

    def _call(self, text: str) -> str:
        rest = self._object.push(text)
        if self._object.verdict:
            self.held = ""
            self.count += 1
            self._state = self._between
            self.ended = not self._listed
        elif self._object.verdict is False:
            self.held += self._object.held
            self.ended = True
        return rest

    def pending_text(self) -> str:
        """The held text, which is no call if nothing more comes."""
        if self._object.confirmed:
            return ""
        return self.held if self._object.verdict is False else self.held + self._object.held

    def _between(self, text: str) -> str:
        rest = text.lstrip(_BETWEEN)
        if not rest:
            return ""
        if rest[0] == ",":
            self.held = text[: len(text) - len(rest) + 1]
            self._object, self._state = self._new_object(), self._call
            return rest[1:]
        self.ended = True
        return rest[1:] if rest[0] == "]" else rest
