"""One call of a tool as a JSON object, `{"name": …, "arguments": {…}}`, read as it comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import msgspec

from api.openai.tools.called import Called
from api.openai.tools.json_end import JsonEnd

_QUOTED = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]<]")
_BETWEEN = " \t\r\n"


class CallObject:
    """Tells `Called` of the call as soon as name and arguments have begun; until then it may turn out to be text.

    The two may come in either order, and with other keys. Once told, it stays a call, whatever its end looks like.
    """

    def __init__(
        self,
        called: Called,
        keys: Collection[str],
        *,
        names: Collection[str] | None = None,
        others: Collection[str] | None = None,
        bare: bool = False,
    ) -> None:
        """`keys`: how the arguments are called; `names`: the tools there are, `others`: what else may stand in it,
        None for any; `bare`: arguments may be missing."""
        self._called = called
        self._keys = keys
        self._names = names
        self._others = others
        self._bare = bare
        self._state: Callable[[str], str] = self._begin
        self._key = ""
        self._raw = ""
        self._escaped = False
        self._whole: Callable[[str], None] = self._key_whole
        self._end = JsonEnd()
        self._name: str | None = None
        self._arguments: str | None = None
        self.told = False
        """Whether it is a call for certain."""
        self.held = ""
        """All of it so far, while it may still be text."""
        self.verdict: bool | None = None
        """Whether it was a call; None while it goes on."""

    def __repr__(self) -> str:
        return f"<CallObject {'told' if self.told else 'held'}, verdict {self.verdict}>"

    def push(self, text: str) -> str:
        """Reads on; what is left of the text is not the object's, and then there is a verdict."""
        rest = text
        while rest and self.verdict is None:
            rest = self._state(rest)
        if not self.told:
            self.held += text[: len(text) - len(rest)]
        return rest

    def _give_up(self, text: str) -> str:
        self.verdict = self.told
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
        if not self.told and self._bare and self._name is not None and self._arguments is None:
            self._more("{}")
        self.verdict = self.told
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
        if not known and not self.told:
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
            self._end = JsonEnd()
            mine = self._key in self._keys and self._arguments is None
            self._state = self._object if mine and text[0] == "{" else self._other
            return self._give_up(text) if mine and text[0] == "[" and not self.told else text
        self._raw, self._state = "", self._scalar
        return text

    def _string_whole(self, raw: str) -> None:
        self._state = self._next_key
        if self.told:
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
            self._more("")

    def _object(self, text: str) -> str:
        end = self._end.find(text)
        self._more(text[:end])
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
        if self.told or self._key not in {"name", *self._keys}:
            return rest
        if self._key == "name" or self._raw != "null" or not self._bare:
            return self._give_up(rest)
        self._more("{}")
        return rest

    def _more(self, arguments: str) -> None:
        if self.told:
            self._called.more(arguments)
            return
        self._arguments = (self._arguments or "") + arguments
        if self._name is not None:
            self.told, self.held = True, ""
            self._called.begin(self._name)
            self._called.more(self._arguments)
