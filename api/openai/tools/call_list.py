"""Several calls as a JSON list, `[{"name": …, "arguments": {…}}, …]`, or one without the brackets."""

from __future__ import annotations

from collections.abc import Callable

from api.openai.tools.call_object import CallObject

_BETWEEN = " \t\r\n"


class CallList:
    """Reads call after call. What is no call ends it: the rest is left to its reader."""

    def __init__(self, new_object: Callable[[], CallObject]) -> None:
        self._new_object = new_object
        self._object = new_object()
        self._state: Callable[[str], str] = self._begin
        self._listed = False
        self.held = ""
        """What may still turn out to be text."""
        self.ended = False
        self.count = 0
        """Calls read to their end."""

    def __repr__(self) -> str:
        return f"<CallList {'ended' if self.ended else 'open'}, {self._object}>"

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

    def unsure(self) -> str:
        """What is text if nothing more comes."""
        if self._object.told:
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
