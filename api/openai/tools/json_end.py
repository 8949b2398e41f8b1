"""Where a JSON object ends in text that comes in pieces."""

from __future__ import annotations

import re

_NEXT = re.compile(r'["{}\[\]<]')
"""What changes anything outside of strings. `<` cannot stand there: it begins the mark after a broken object."""
_NEXT_IN_STRING = re.compile(r'["\\]')


class JsonEnd:
    """Looks at brackets and strings alone: what else is wrong in the object is its reader's business."""

    __slots__ = ("_depth", "_escaped", "_in_string", "cut")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.cut = False
        """Whether it ended at a sign that no JSON has there."""

    def find(self, text: str) -> int | None:
        """How many of the next characters are the object's if it ends among them; None if all are and it goes on."""
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
